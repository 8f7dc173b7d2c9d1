"""A cluster that joins while no worker runs wakes what had named it before (Q9, promise 2)."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

import msgspec

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from fleetbus_proto.keys import queue
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Recorder, Rig

PODS = "v1/pods"
SOON = timedelta(seconds=20)


def write_only(kubeconfig: pathlib.Path, name: str) -> bytes:
    """Leave one context in a kubeconfig; answers what it held."""
    content = kubeconfig.read_bytes()
    tree = msgspec.yaml.decode(content)
    contexts = [context for context in tree["contexts"] if context["name"] == name]
    kubeconfig.write_bytes(msgspec.yaml.encode({**tree, "contexts": contexts}))
    return content


async def test_q9_a_cluster_that_joins_while_all_workers_are_down_wakes_what_named_it(
    open_rig: Callable[..., Awaitable[Rig]],
) -> None:
    async def to_b(_obj: Any, request: Request, _fleet: Fleet) -> Iterable[Request]:
        return [request, Request(request.controller, "b", request.namespace, request.name)]

    controller = Controller("mapped")
    controller.watch(PODS, map=to_b)
    recorder = Recorder(controller, PODS)
    rig = await open_rig("a", "b")
    rig.clusters["a"].create(PODS, pod("p"), "default")
    both = write_only(rig.kubeconfig, "a")
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await eventually(lambda: recorder.of("a", "default", "p"), within=SOON)

    async def knows_the_fleet() -> bool:
        return await rig.redis.get(queue("mapped", "fleet")) == b"a"

    await eventually(knows_the_fleet, within=SOON)
    assert recorder.of("b", "default", "p") == []
    await rig.stop_reconciler()
    rig.kubeconfig.write_bytes(both)
    rig.start_reconciler(controller)
    rig.start_watcher("b")
    await eventually(lambda: recorder.of("b", "default", "p"), within=SOON)
