"""Waits until a cluster serves the types that the same set defines (rules D9, D12).

A CustomResourceDefinition is stored at once, but its instances are accepted only once it is
established, and the API server knows about that. Everything else goes on meanwhile; only instances
wait, for a few seconds of the round, and the next round follows soon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

from fleetbus.process.cancellation import cancel_and_wait
from fleetbus.process.pauses import Pauses
from fleetbus_distributor.render.template import Object, reference
from fleetbus_distributor.targets.target import Target

SERVED_WITHIN: Final = timedelta(seconds=3)
"""Time limit of one round; a cluster with several API servers needs about 5 s."""
_FIRST_PAUSE: Final = timedelta(seconds=0.05)
_LONGEST_PAUSE: Final = timedelta(seconds=0.5)
Type: TypeAlias = tuple[str, str]
"""Like `example.org/v1`, `Database`."""


def split_instances(
    objects: Sequence[Object],
) -> tuple[list[Object], dict[Type, list[Object]]]:
    """Part the objects whose type is defined by a CRD of the same set from all others."""
    defined = {kind for obj in objects for kind in _defined_kinds(obj)}
    others: list[Object] = []
    instances: dict[Type, list[Object]] = {}
    for obj in objects:
        ref = reference(obj)
        group = ref.api_version.rpartition("/")[0]
        if (group, ref.kind) in defined:
            instances.setdefault((ref.api_version, ref.kind), []).append(obj)
        else:
            others.append(obj)
    return others, instances


def _defined_kinds(obj: Object) -> Iterator[tuple[str, str]]:
    """Group and kind of the type that a CRD defines; a template may have anything there."""
    if obj.get("kind") != "CustomResourceDefinition":
        return
    spec: Any = obj.get("spec")
    names: Any = cast("Object", spec).get("names") if isinstance(spec, dict) else None
    if isinstance(names, dict):
        group, kind = cast("Object", spec).get("group"), cast("Object", names).get("kind")
        if isinstance(group, str) and isinstance(kind, str):
            yield group, kind


async def in_order_of_service(
    target: Target, instances: dict[Type, list[Object]], *, waits: bool
) -> AsyncGenerator[list[Object]]:
    """Yield the instances of each type, those that can be created first.

    Args:
        target: the cluster, where the definitions were applied just now.
        instances: by type.
        waits: whether it is worth waiting; otherwise they come at once.

    Raises:
        KubeError: the cluster cannot be asked.
    """
    within = SERVED_WITHIN if waits else timedelta()
    waiting = {
        asyncio.create_task(_wait_for(target, kind, within), name=f"wait for {kind[1]}"): kind
        for kind in instances
    }
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                kind = waiting.pop(task)
                task.result()
                yield instances[kind]
    finally:
        for task in waiting:
            await cancel_and_wait(task)


async def _wait_for(target: Target, kind: Type, within: timedelta) -> None:
    """Wait until a type is served, or for so long."""
    until = time.monotonic() + within.total_seconds()
    pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
    is_first = True
    while not await _is_served(target, kind, anew=not is_first):
        if time.monotonic() >= until:
            return
        is_first = False
        await pauses.sleep()


async def _is_served(target: Target, kind: Type, *, anew: bool) -> bool:
    version, name = kind
    served = await target.client.discovery.version(version, anew=anew)
    return any(api.kind == name for api in served)
