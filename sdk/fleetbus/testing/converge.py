"""Does a controller converge? The same changes, told in other orders, twice, with runs cut off.

Rule R2: events come late, twice and in any order between objects, and a run may die anywhere. What
a controller leaves behind must not depend on it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fleetbus.kube.client import REQUEST_TIMEOUT, KubeClient
from fleetbus.kube.trees import read_tree
from fleetbus.testing.emulated import emulated_fleet, open_feed
from fleetbus.testing.harness import UNWATCHED, ControllerTest, harness
from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from datetime import timedelta

    from fleetbus.clusters.info import ClusterInfo
    from fleetbus.controller.controller import Controller
    from fleetbus.testing.emulated import EmulatedFleet
    from fleetbus_proto.events import Event

Step: TypeAlias = "Callable[[EmulatedFleet], object]"
"""Something that users or other programs do to the clusters."""

_HELD_BACK: Final = 0.4
_TOLD_TWICE: Final = 0.2
_CUT: Final = 0.25
_MOST_CUTS: Final = 4
"""Of one order: a run that is cut counts as failed, and not all of its retries may be."""
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_OF_THE_SERVER: Final = ("resourceVersion", "generation", "creationTimestamp", "managedFields")


async def assert_converges(
    controller: Controller,
    *events: Step,
    clusters: Sequence[str] | Mapping[str, Mapping[str, str]] = ("a", "b"),
    hub: str = "",
    orders: int = 8,
    seed: int = 0,
    store: str = "",
) -> None:
    """Check that what a controller leaves behind depends on what happened, not on how it is told.

    The events happen in their order, once with a controller that is told each at once, then
    `orders` times with one that is told late, twice and in another order, and whose runs are cut
    off at some of their writes, before or after the API server has done them. All must end with
    the same objects in all clusters; uids, times and what servers count are not compared, nor are
    Kubernetes Events.

    Args:
        controller: a whole one; what it remembers in variables must not matter either.
        events: each a function that changes emulated clusters.
        clusters: their names; or names with their labels.
        hub: which of them is the hub, if any.
        orders: how many other orders.
        seed: makes the orders; the message of a failure names the one that failed.
        store: as in `controller_test`.

    Raises:
        AssertionError: two orders end differently; the message has the difference. Or nothing that
            happened woke the controller, so nothing was checked.
        NotIdle: the controller does not come to an end.
    """
    if not isinstance(clusters, Mapping):
        clusters = {name: {} for name in clusters}
    setup = _Setup(clusters, hub)
    expected = await _run_once(controller, events, setup, store, None)
    for order in range(orders):
        told = _Shuffler(random.Random(f"{seed} {order}"))  # noqa: S311 -- to be repeated
        found = await _run_once(controller, events, setup, store, told)
        if found != expected:
            difference = "\n".join(
                unified_diff(expected, found, "told in order", f"order {order}", lineterm="", n=2)
            )
            raise AssertionError(
                f"controller {controller.name!r} does not converge"
                f" (seed {seed}, order {order}: {told.story})\n{difference}"
            )


@dataclass(frozen=True, slots=True)
class _Setup:
    """The clusters of a play, each with its labels."""

    labels: Mapping[str, Mapping[str, str]]
    hub: str


class _Shuffler:
    """Tells events late, twice and in another order; decides which writes are cut off."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._held: list[Event] = []
        self._told: list[Event] = []
        self._cuts = 0
        self.is_over = False
        """From now on everything is told at once, and nothing is cut."""

    @property
    def story(self) -> str:
        """What was done, for messages."""
        return f"{len(self._told)} events told, {self._cuts} runs cut off"

    def deliver(self, events: list[Event]) -> list[Event]:
        """What is told now."""
        waiting = [*self._held, *events]
        self._chance.shuffle(waiting)
        is_late = [not self.is_over and self._chance.random() < _HELD_BACK for _ in waiting]
        now = [event for event, late in zip(waiting, is_late, strict=True) if not late]
        self._held = [event for event, late in zip(waiting, is_late, strict=True) if late]
        again = self._told if now and self._chance.random() < _TOLD_TWICE else []
        told = [*now, *self._chance.sample(again, min(2, len(again)))]
        self._told += now
        return told

    @property
    def has_held_back(self) -> bool:
        """Whether something was not told yet."""
        return bool(self._held)

    def client(self, info: ClusterInfo) -> KubeClient:
        """A client whose process dies at some writes."""
        return _CutClient(info, self)

    def cut(self) -> bool:
        """Whether the run that is about to write, or has written, dies here."""
        if self.is_over or self._cuts >= _MOST_CUTS or self._chance.random() >= _CUT:
            return False
        self._cuts += 1
        return True


class _CutClient(KubeClient):
    """A client whose process dies at some writes."""

    def __init__(self, info: ClusterInfo, shuffler: _Shuffler) -> None:
        super().__init__(info.config)
        self._shuffler = shuffler

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        within: timedelta = REQUEST_TIMEOUT,
    ) -> bytes:
        """Send it, or not; answer, or not."""
        is_write = method != "GET"
        if is_write and self._shuffler.cut():
            raise asyncio.CancelledError("cut off before a write")
        answer = await super().request(
            method, path, query=query, body=body, content_type=content_type, within=within
        )
        if is_write and self._shuffler.cut():
            raise asyncio.CancelledError("cut off after a write")
        return answer


async def _run_once(
    controller: Controller,
    events: Sequence[Step],
    setup: _Setup,
    store: str,
    shuffler: _Shuffler | None,
) -> list[str]:
    """What the clusters hold in the end, as lines."""
    deliver = shuffler.deliver if shuffler is not None else _as_they_come
    with emulated_fleet(list(setup.labels), workloads=False) as fleet:
        async with harness(
            [controller],
            fleet,
            labels=setup.labels,
            hub=setup.hub,
            store=store,
            deliver=deliver,
            make_client=None if shuffler is None else shuffler.client,
        ) as test:
            for event in events:
                event(fleet)
                await test.run_until_idle()
            if shuffler is not None:
                shuffler.is_over = True
            await test.run_until_idle()
            if not test.requests:
                raise AssertionError(f"nothing that happened woke controller {controller.name!r}")
            return _final_state(test)


def _as_they_come(events: list[Event]) -> list[Event]:
    return events


def _final_state(test: ControllerTest) -> list[str]:
    """All objects of all clusters, without what differs between two runs by nature."""
    objects: dict[tuple[str, ...], Any] = {}
    for cluster in test.clusters.clusters:
        for event in open_feed(cluster).take():
            if event.verb is not Verb.DELETED and event.resource_key not in UNWATCHED:
                place = (event.cluster, event.resource_key, event.namespace, event.name)
                objects[place] = read_tree(event.object or b"null")
    uids = {obj["metadata"]["uid"]: "/".join(place) for place, obj in objects.items()}
    lines: list[str] = []
    for place, obj in sorted(objects.items()):
        metadata = {k: v for k, v in obj["metadata"].items() if k not in _OF_THE_SERVER}
        text = json.dumps({**obj, "metadata": metadata}, indent=1, sort_keys=True)
        text = _UID.sub(lambda found: f"uid of {uids.get(found[0], 'what is gone')}", text)
        lines += [f"{' '.join(place)}:", *_TIME.sub("a time", text).splitlines()]
    return lines
