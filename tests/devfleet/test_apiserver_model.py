"""Random histories: every informer ends with the store's state; no body brings the server down."""

import asyncio
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kube_calls import (
    CONFIGMAPS,
    Calls,
    config_map,
)

from fleetbus_devfleet.apiserver import Cluster, Watch

NAMES = ("a", "b", "c")
LABELS = ("x", "y")


class Informer:
    """List, watch, reconnect, relist on 410: what a client library keeps as its cache."""

    def __init__(self, calls: Calls, selector: str) -> None:
        self._calls = calls
        self._query = {"labelSelector": selector} if selector else {}
        self._watch: Watch | None = None
        self._rv = ""
        self.cache: dict[str, str] = {}
        self._relist()

    def _relist(self) -> None:
        page = self._calls.get(CONFIGMAPS, limit="2", **self._query)
        items = page.document["items"]
        while token := page.meta.get("continue"):
            page = self._calls.get(CONFIGMAPS, limit="2", continue_=token, **self._query)
            items += page.document["items"]
        self.cache = {i["metadata"]["name"]: i["metadata"]["resourceVersion"] for i in items}
        self._rv = page.rv
        self.disconnect()

    def disconnect(self) -> None:
        if self._watch is not None:
            self._calls.cluster.release(self._watch)
        self._watch = None

    def pump(self) -> None:
        if self._watch is None:
            self._watch = self._calls.watch(CONFIGMAPS, resourceVersion=self._rv, **self._query)
        for line in self._watch.read().splitlines():
            event = orjson.loads(line)
            if event["type"] == "ERROR":
                self._relist()
                return
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        meta = event["object"]["metadata"]
        assert int(meta["resourceVersion"]) > int(self._rv)
        self._rv = meta["resourceVersion"]
        if event["type"] == "DELETED":
            del self.cache[meta["name"]]
            return
        assert (event["type"] == "MODIFIED") == (meta["name"] in self.cache)
        self.cache[meta["name"]] = meta["resourceVersion"]


_WRITES = st.tuples(
    st.sampled_from(["put", "label", "delete"]), st.sampled_from(NAMES), st.sampled_from(LABELS)
)
_READS = st.tuples(
    st.sampled_from(["pump", "disconnect", "compact"]), st.just(""), st.integers(0, 2)
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(_WRITES, _READS), max_size=40))
def test_every_informer_ends_with_what_the_store_has(steps: list[tuple[str, str, Any]]):
    calls = Calls(Cluster("alpha", event_capacity=6))
    selectors = ("", "l=x", "l!=x")
    informers = [Informer(calls, selector) for selector in selectors]
    for action, name, value in steps:
        path = f"{CONFIGMAPS}/{name}"
        match action:
            case "put":
                calls.post(CONFIGMAPS, config_map(name, {"labels": {"l": value}}))
            case "label":
                calls.merge(path, {"metadata": {"labels": {"l": value}}})
            case "delete":
                calls.delete(path)
            case "pump":
                informers[value].pump()
            case "disconnect":
                informers[value].disconnect()
            case _:
                calls.cluster.compact()
    for selector, informer in zip(selectors, informers, strict=True):
        informer.pump()
        items = calls.get(CONFIGMAPS, labelSelector=selector).document["items"]
        present = {i["metadata"]["name"]: i["metadata"]["resourceVersion"] for i in items}
        informer.pump()
        assert informer.cache == present


async def test_a_hundred_watchers_each_see_every_event():
    calls = Calls(Cluster("alpha"))
    watches = [calls.watch(CONFIGMAPS) for _ in range(100)]

    async def seen(watch: Watch) -> int:
        count = 0
        while count < 50:
            count += len(watch.read().splitlines())
            if count < 50:
                await watch.wait()
        return count

    async def write() -> None:
        for number in range(50):
            calls.post(CONFIGMAPS, config_map(f"c{number}"))
            await asyncio.sleep(0)

    async with asyncio.timeout(10):
        counts, _ = await asyncio.gather(asyncio.gather(*map(seen, watches)), write())
    assert counts == [50] * 100
