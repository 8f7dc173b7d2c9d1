"""Runs `fleetbus rollout` on the hub itself, so it works while every service is down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

from fleetbus.errors import ConfigError, Conflict
from fleetbus.kube.client import KubeClient, Object
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.process import printer
from fleetbus.process.durations import InvalidTime, parse_duration
from fleetbus.process.pauses import Pauses
from fleetbus_cli.documents import render_json
from fleetbus_cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus_cli.table import render_table
from fleetbus_cli.unknown import unknown
from fleetbus_distributor.errors import RolloutError
from fleetbus_distributor.hub.rollout_state import (
    Phase,
    RolloutState,
    WaveStatus,
    named,
    read_state,
    write_state,
)
from fleetbus_distributor.rollout.history import FIELDS, Revision, read_history

MANAGER: Final = "fleetbus-cli"
_WAVES: Final = ("WAVE", "PHASE", "CLUSTERS", "READY", "GATES", "MESSAGE")
_REVISIONS: Final = ("REVISION", "CREATED", "CLUSTERS", "OBJECTS", "IMAGES", "CHANGE-CAUSE")
_POLL: Final = timedelta(seconds=1)
_ATTEMPTS: Final = 5
_CONFLICT_PAUSES: Final = (timedelta(milliseconds=50), timedelta(milliseconds=400))
_ADVICE: Final = "add `rollout: {}` to its spec, and revisions are kept from then on"


def run_status(name: str, namespace: str, *, output: str, wait: str, hub: Hub) -> int:
    """Print where a rollout is; return 1 if it failed, or is not complete in time.

    Raises:
        ConfigError: an argument is invalid, or the hub is not set.
    """
    until = time.monotonic() + _read_wait(wait).total_seconds()

    async def show(client: KubeClient, resource: Object) -> int:
        state = _state_of(resource)
        while state.phase is not Phase.COMPLETE and time.monotonic() < until:
            if state.phase is Phase.FAILED:
                break
            await asyncio.sleep(_POLL.total_seconds())
            resource = await _read(client, name, namespace)
            state = _state_of(resource)
        if output == "json":
            printer.json_text(render_json(write_state(state)))
        else:
            printer.block(_render(resource, state))
        is_late = bool(wait) and state.phase is not Phase.COMPLETE
        return int(is_late or state.phase is Phase.FAILED)

    return _run(name, namespace, hub, show)


def run_history(name: str, namespace: str, *, output: str, hub: Hub) -> int:
    """Print the revisions that are kept.

    Raises:
        ConfigError: an argument is invalid, or the hub is not set.
    """

    async def show(client: KubeClient, resource: Object) -> int:
        state = _state_of(resource)
        history = await read_history(client, resource)
        rows = [
            _describe(revision, _clusters_with(state, revision.ref.name)) for revision in history
        ]
        if output == "json":
            printer.json_text(render_json({"current": state.revision.number, "revisions": rows}))
        else:
            printer.block(render_table(_REVISIONS, [_row(row, state) for row in rows]))
        return 0

    return _run(name, namespace, hub, show)


def run_revision(name: str, namespace: str, number: int, *, output: str, hub: Hub) -> int:
    """Print the content of a revision, and what changed since the one before that is kept.

    Raises:
        ConfigError: there is no such revision, or the hub is not set.
    """
    from fleetbus_distributor.cli.revision_text import print_revision  # noqa: PLC0415 -- cost

    async def show(client: KubeClient, resource: Object) -> int:
        state = _state_of(resource)
        history = await read_history(client, resource)
        chosen = _revision(history, number)
        earlier = [revision for revision in history if revision.ref.number < number]
        described = _describe(chosen, _clusters_with(state, chosen.ref.name))
        before = earlier[-1] if earlier else None
        print_revision(_title(resource), chosen, before, described, output=output)
        return 0

    return _run(name, namespace, hub, show)


def run_undo(name: str, namespace: str, *, to_revision: int, hub: Hub) -> int:
    """Set the spec back to an earlier revision.

    Raises:
        ConfigError: there is no such revision, or the hub is not set.
    """

    async def undo(client: KubeClient, resource: Object) -> int:
        state = _state_of(resource)
        history = await read_history(client, resource)
        chosen = _choose(history, state, to_revision)
        spec = cast("dict[str, Any]", resource["spec"])
        others = {key: value for key, value in spec.items() if key not in FIELDS}
        edited = {**resource, "spec": {**others, **chosen.fields}}
        await client.update(MULTI_CLUSTER_RESOURCES, edited, field_manager=MANAGER)
        printer.line(f"{_title(resource)}: edited back to revision {chosen.ref.number}")
        if state.phase is Phase.PAUSED:
            printer.line("its rollout is paused: `fleetbus rollout resume` begins it")
        return 0

    return _run(name, namespace, hub, undo)


def set_paused(name: str, namespace: str, *, paused: bool, hub: Hub) -> int:
    """Pause or resume a rollout.

    Raises:
        ConfigError: it has none, or the hub is not set.
    """

    async def edit(client: KubeClient, resource: Object) -> int:
        rollout: Any = resource["spec"].get("rollout")
        if rollout is None:
            raise ConfigError(f"{_title(resource)} has no spec.rollout: {_ADVICE}")
        done = "paused" if paused else "resumed"
        if bool(rollout.get("paused")) is paused:
            printer.line(f"{_title(resource)}: already {done}")
            return 0
        metadata = resource["metadata"]
        # An edit that came meanwhile, one that removes spec.rollout say, must not be undone.
        patch = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "spec": {"rollout": {"paused": paused}},
        }
        await client.patch(
            MULTI_CLUSTER_RESOURCES,
            metadata["namespace"],
            metadata["name"],
            patch,
            field_manager=MANAGER,
        )
        printer.line(f"{_title(resource)}: {done}")
        return 0

    return _run(name, namespace, hub, edit)


def _run(
    name: str, namespace: str, hub: Hub, act: Callable[[KubeClient, Object], Awaitable[int]]
) -> int:
    config = resolve_hub(hub)

    async def main() -> int:
        async with KubeClient(config) as client:
            try:
                return await _act(client, name, namespace, act)
            except RolloutError as error:
                printer.note(f"fleetbus: {error}")
                return 1

    return run_on_hub(main())


async def _act(
    client: KubeClient,
    name: str,
    namespace: str,
    act: Callable[[KubeClient, Object], Awaitable[int]],
) -> int:
    """Read the resource and act on it, again if it was changed meanwhile.

    The distributor writes its status at any time, and a status is no reason to refuse an edit.
    """
    pauses = Pauses(*_CONFLICT_PAUSES)
    for _ in range(_ATTEMPTS - 1):
        with suppress(Conflict):
            return await act(client, await _read(client, name, namespace))
        await pauses.sleep()
    return await act(client, await _read(client, name, namespace))


async def _read(client: KubeClient, name: str, namespace: str) -> Object:
    before, slash, after = name.partition("/")
    if slash:
        namespace, name = before, after
    if not name or not namespace or "/" in name:
        raise ConfigError(f"{before}{slash}{after} is neither NAME nor NAMESPACE/NAME")
    resource = await client.get(MULTI_CLUSTER_RESOURCES, namespace, name)
    if resource is None:
        names = [
            str(resource["metadata"]["name"])
            for resource in await client.list(MULTI_CLUSTER_RESOURCES, namespace)
        ]
        raise unknown(f"namespace {namespace} has no MultiClusterResource {name}", name, names)
    return resource


def _read_wait(text: str) -> timedelta:
    if not text:
        return timedelta()
    try:
        return parse_duration(text)
    except InvalidTime as error:
        raise ConfigError(f"--wait {error}") from error


def _state_of(resource: Object) -> RolloutState:
    status: Object = resource.get("status") or {}
    state = read_state(status)
    if state is not None:
        return state
    if resource["spec"].get("rollout") is None:
        raise ConfigError(f"{_title(resource)} has no spec.rollout: {_ADVICE}")
    conditions = cast("list[Object]", status.get("conditions") or [])
    why = [
        str(condition.get("message"))
        for condition in conditions
        if condition.get("type") == "Ready"
    ]
    raise RolloutError(
        f"the distributor has not begun the rollout of {_title(resource)}"
        + (f": {why[0]}" if why else "; is it running?")
    )


def _title(resource: Object) -> str:
    return f"{resource['metadata']['namespace']}/{resource['metadata']['name']}"


def _render(resource: Object, state: RolloutState) -> str:
    lines = [f"{_title(resource)}: revision {state.revision.number}, {state.phase}"]
    if state.message:
        lines[0] += f": {printer.printable(state.message)}"
    status: Object = resource.get("status") or {}
    observed = status.get("observedGeneration")
    if observed != resource["metadata"].get("generation", 0):
        lines.append("The spec was edited since; the distributor has not handled that yet.")
    lines += ["", render_table(_WAVES, [_wave_row(wave, state) for wave in state.waves])]
    groups: dict[int, list[str]] = {}
    for cluster, revision in state.behind.items():
        groups.setdefault(revision.number, []).append(cluster)
    for number, clusters in sorted(groups.items()):
        has = f"revision {number}" if number else "no revision yet"
        lines.append(f"\n{len(clusters)} cluster(s) with {has}: {named(clusters)}")
    return "\n".join(lines)


def _wave_row(wave: WaveStatus, state: RolloutState) -> list[str]:
    waits = {*state.behind, *state.updating}
    is_over = wave.phase.value == "Passed"
    ready = sum(is_over or name not in waits for name in wave.clusters)
    text = str(ready) if wave.phase.value != "Waiting" else "0"
    gates = ", ".join(f"{gate.name} {gate.state}" for gate in wave.gates)
    return [wave.name, wave.phase.value, str(len(wave.clusters)), text, gates, wave.message]


def _clusters_with(state: RolloutState, name: str) -> list[str]:
    """The clusters that have a revision."""
    clusters = [cluster for cluster, revision in state.behind.items() if revision.name == name]
    if name == state.revision.name:
        placed = [cluster for wave in state.waves for cluster in wave.clusters]
        clusters += [cluster for cluster in placed if cluster not in state.behind]
    return sorted(clusters)


def _describe(revision: Revision, clusters: Sequence[str]) -> dict[str, Any]:
    fields = revision.fields
    single = fields.get("template")
    templates = cast("list[Object]", fields.get("templates") or ([single] if single else []))
    objects = [
        f"{template.get('kind')}/{template.get('metadata', {}).get('name')}"
        for template in templates
    ]
    return {
        "revision": revision.ref.number,
        "name": revision.ref.name,
        "created": revision.created,
        "clusters": list(clusters),
        "objects": objects,
        "images": sorted(set(_images(templates))),
        "cause": revision.cause,
    }


def _images(value: object) -> Iterator[str]:
    """The images of the containers in templates of any kind, custom resources included."""
    if isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _images(item)
    elif isinstance(value, dict):
        members = cast("dict[str, object]", value)
        image = members.get("image")
        if isinstance(image, str) and "name" in members:
            yield image
        for member in members.values():
            yield from _images(member)


def _row(described: Mapping[str, Any], state: RolloutState) -> list[str]:
    number = int(described["revision"])
    mark = " (newest)" if number == state.revision.number else ""
    objects = named(cast("list[str]", described["objects"]), limit=3)
    images = named(cast("list[str]", described["images"]), limit=3)
    count = str(len(described["clusters"]))
    return [f"{number}{mark}", described["created"], count, objects, images, described["cause"]]


def _choose(history: Sequence[Revision], state: RolloutState, number: int) -> Revision:
    others = [revision for revision in history if revision.ref.number != state.revision.number]
    target = (
        number or state.previous or max((revision.ref.number for revision in others), default=0)
    )
    if target == state.revision.number:
        raise ConfigError(f"revision {target} is the newest one already")
    return _revision(history, target)


def _revision(history: Sequence[Revision], number: int) -> Revision:
    for revision in history:
        if revision.ref.number == number:
            return revision
    numbers = ", ".join(str(revision.ref.number) for revision in history) or "none"
    raise ConfigError(f"revision {number} is not kept; kept: {numbers}")
