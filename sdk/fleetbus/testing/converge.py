"""Checks that a controller converges under late, repeated and reordered events and killed runs.

Events arrive late, twice and in any order between objects, and a run may die anywhere (rule R2).
The final state must not depend on that.
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

from fleetbus.kube.client import KubeClient
from fleetbus.kube.trees import read_tree
from fleetbus.testing.emulated import emulated_fleet, open_feed
from fleetbus.testing.harness import UNWATCHED, ControllerTest, harness
from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from fleetbus.clusters.info import ClusterInfo
    from fleetbus.controller.controller import Controller
    from fleetbus.kube.requests import Call
    from fleetbus.testing.emulated import EmulatedFleet
    from fleetbus_proto.events import Event

Step: TypeAlias = "Callable[[EmulatedFleet], object]"
"""Something that users or other programs do to the clusters."""

_DELAYED: Final = 0.4
_DELIVERED_TWICE: Final = 0.2
_CUT: Final = 0.25
_MAX_CUTS: Final = 4
"""In one order: an interrupted run counts as failed, and some retries must succeed."""
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
    """Check that the final state depends on what happened, not on the delivery of events.

    The steps run in order: once with every event delivered at once, then `orders` times with
    events late, repeated and reordered, and with runs killed at some of their writes, before or
    after the API server has done them. All must end with the same objects in all clusters; uids,
    times, server-side counters and Kubernetes Events are not compared.

    Args:
        controller: a complete one; state in its variables must not matter either.
        events: each a function that changes emulated clusters.
        clusters: their names; or names with their labels.
        hub: which of them is the hub, if any.
        orders: how many random orders.
        seed: seeds the orders; a failure message names the order.
        store: as in `controller_test`.

    Raises:
        AssertionError: an order ends in another state; the message has the difference. Or no event
            triggered the controller, so nothing was checked.
        NotIdle: the controller does not become idle.
    """
    if not isinstance(clusters, Mapping):
        clusters = {name: {} for name in clusters}
    setup = _Setup(clusters, hub)
    expected = await _run_once(controller, events, setup, store, None)
    for order in range(orders):
        shuffler = _Shuffler(random.Random(f"{seed} {order}"))  # noqa: S311 -- repeatable
        actual = await _run_once(controller, events, setup, store, shuffler)
        if actual != expected:
            where = f"(seed {seed}, order {order}: {shuffler})"
            raise AssertionError(_describe_difference(controller, where, expected, actual))


def _describe_difference(
    controller: Controller, where: str, expected: list[str], actual: list[str]
) -> str:
    diff = "\n".join(unified_diff(expected, actual, "in order", where, lineterm="", n=2))
    return f"controller {controller.name!r} does not converge {where}\n{diff}"


@dataclass(frozen=True, slots=True)
class _Setup:
    """The clusters of a run with their labels."""

    labels: Mapping[str, Mapping[str, str]]
    hub: str


class _Shuffler:
    """Delivers events late, twice and in another order; decides which runs die at a write."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._delayed: list[Event] = []
        self._delivered: list[Event] = []
        self._cuts = 0
        self.is_over = False
        """Whether to deliver everything at once from now on, and let no run die."""

    def __str__(self) -> str:
        return f"{len(self._delivered)} events delivered, {self._cuts} runs killed"

    def deliver(self, events: list[Event]) -> list[Event]:
        """Return the events to deliver now."""
        waiting = [*self._delayed, *events]
        self._chance.shuffle(waiting)
        is_late = [not self.is_over and self._chance.random() < _DELAYED for _ in waiting]
        now = [event for event, late in zip(waiting, is_late, strict=True) if not late]
        self._delayed = [event for event, late in zip(waiting, is_late, strict=True) if late]
        again = self._delivered if now and self._chance.random() < _DELIVERED_TWICE else []
        delivered = [*now, *self._chance.sample(again, min(2, len(again)))]
        self._delivered += now
        return delivered

    def client(self, info: ClusterInfo) -> KubeClient:
        """Make a client that simulates the death of its process at some writes."""
        return _CutClient(info, self)

    def cut(self) -> bool:
        """Decide whether the run dies here, before or after a write."""
        if self.is_over or self._cuts >= _MAX_CUTS or self._chance.random() >= _CUT:
            return False
        self._cuts += 1
        return True


class _CutClient(KubeClient):
    """A client that simulates the death of its process at some writes."""

    def __init__(self, info: ClusterInfo, shuffler: _Shuffler) -> None:
        super().__init__(info.config)
        self._shuffler = shuffler

    async def request(self, call: Call) -> bytes:
        """Send a request; a write may be cancelled before or after it is sent."""
        is_write = call.method != "GET"
        if is_write and self._shuffler.cut():
            raise asyncio.CancelledError("killed before a write")
        answer = await super().request(call)
        if is_write and self._shuffler.cut():
            raise asyncio.CancelledError("killed after a write")
        return answer


async def _run_once(
    controller: Controller,
    events: Sequence[Step],
    setup: _Setup,
    store: str,
    shuffler: _Shuffler | None,
) -> list[str]:
    """Run the steps; return the final state of the clusters as lines."""
    deliver = shuffler.deliver if shuffler is not None else _deliver_all
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
                raise AssertionError(f"no event triggered controller {controller.name!r}")
            return _final_state(test)


def _deliver_all(events: list[Event]) -> list[Event]:
    return events


def _final_state(test: ControllerTest) -> list[str]:
    """Render all objects of all clusters, without fields that differ between any two runs."""
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
        text = _UID.sub(lambda match: f"uid of {uids.get(match[0], 'a deleted object')}", text)
        lines += [f"{' '.join(place)}:", *_TIME.sub("a time", text).splitlines()]
    return lines
