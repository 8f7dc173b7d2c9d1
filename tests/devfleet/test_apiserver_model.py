"""Random histories: every informer ends with the store's state; no body brings the server down."""

import asyncio
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kube_calls import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    MERGE,
    PODS,
    STRATEGIC,
    WIDGETS,
    Calls,
    config_map,
    deployment,
    widget,
    widget_definition,
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


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab/.:{", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["name", "spec", "metadata", "labels", "containers", "template", "env", "ports"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
_PATHS = st.sampled_from(
    [
        (),
        ("metadata",),
        ("metadata", "labels"),
        ("metadata", "ownerReferences"),
        ("metadata", "managedFields"),
        ("spec",),
        ("spec", "template"),
        ("spec", "selector"),
        ("spec", "containers"),
        ("spec", "template", "spec", "containers"),
        ("spec", "items"),
        ("status",),
        ("data",),
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_PATHS, _JSON, st.sampled_from([CONFIGMAPS, DEPLOYMENTS, PODS, WIDGETS]))
def test_no_body_brings_the_server_down(path: tuple[str, ...], value: Any, where: str):
    calls = Calls(Cluster("alpha"))
    calls.post(CRDS, widget_definition())
    pod = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    bodies = {CONFIGMAPS: config_map("a"), DEPLOYMENTS: deployment("a"), PODS: pod}
    calls.post(where, bodies.get(where, widget("a")))
    patch: Any = value
    for step in reversed(path):
        patch = {step: patch}
    body: dict[str, Any] = patch if path else {"metadata": patch}
    for method, target, content in (
        ("POST", where, "application/json"),
        ("PUT", f"{where}/a", "application/json"),
        ("PATCH", f"{where}/a", MERGE),
        ("PATCH", f"{where}/a", STRATEGIC),
    ):
        reply = calls.call(method, target, body, content=content)
        assert reply.status in {200, 201, 400, 404, 409, 415, 422, 500}
        if reply.status == 500:
            assert reply.message == "resourceVersion should not be set on objects to be created"
    kinds = {CONFIGMAPS: "v1/ConfigMap", DEPLOYMENTS: "apps/v1/Deployment", PODS: "v1/Pod"}
    version, _, kind = kinds.get(where, "example.com/v1/Widget").rpartition("/")
    empty: dict[str, Any] = {}
    applied = {"metadata": empty, **body, "apiVersion": version, "kind": kind}
    reply = calls.apply(f"{where}/a", applied, "m")
    assert reply.status in {200, 400, 409, 422, 500}
    if reply.status == 500:
        assert reply.message.startswith("failed to create typed patch object")


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
