"""Rehearses: opens the fleet, edits the MultiClusterResource, breaks clusters, and watches."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from fleetbus.bus.connection import Bus, connected
from fleetbus.errors import CaptureError, Conflict, FleetbusError, KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.kube.resource_names import built_in_plurals
from fleetbus.ownership import OWNER_UID_LABEL
from fleetbus.process.access.nats import NatsAccess
from fleetbus_cli.capture.reading import Capture
from fleetbus_cli.unknown import unknown
from fleetbus_devfleet.captures.opening import read_opened
from fleetbus_devfleet.rehearsal.captured import CapturedResource, missing_types
from fleetbus_devfleet.rehearsal.injection import DISTRIBUTOR, Injection
from fleetbus_devfleet.rehearsal.manifest import RESOURCE
from fleetbus_devfleet.rehearsal.outcome import (
    ClusterResult,
    Follower,
    Rehearsal,
    cluster_results,
    decide,
    refusal,
)
from fleetbus_devfleet.stack.captured_clusters import clusters_of
from fleetbus_devfleet.stack.plan import Layout, StackPlan
from fleetbus_devfleet.stack.stack import Stack
from fleetbus_emulator.apiserver.admin import AdminClient
from fleetbus_proto.subjects import vote_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from fleetbus_devfleet.rehearsal.faults import Fault
    from fleetbus_devfleet.rehearsal.manifest import Manifest

JsonObject = dict[str, Any]
_POLL: Final = 0.1
_SETTLED: Final = 3.0
"""Seconds without news after which a rollout that has ended is over."""
_STUCK: Final = 15.0
"""Seconds without news after which objects without a rollout are as they will be."""
_MOST_WATCHERS: Final = 3
_INTERNAL: Final = frozenset(
    {"fleetbus.dev", "coordination.k8s.io", "events.k8s.io", "apiextensions.k8s.io"}
)
_HIDDEN: Final = "values of environment variables"


class Tell(Protocol):
    """Shows progress."""

    def __call__(self, text: str, at: float | None = None) -> None:
        """Show a line, with the seconds since the edit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The subject of a rehearsal.

    Attributes:
        capture: the fleet.
        manifest: the MultiClusterResource.
        faults: in their order.
        votes: `pass` or `fail` by the name of the gate.
        timeout: of the rollout.
    """

    capture: Capture
    manifest: Manifest
    faults: Sequence[Fault]
    votes: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: timedelta

    def check(self) -> None:
        """Check that everything is in the fleet.

        Raises:
            CaptureError: the capture lacks the hub.
            UnknownName: it lacks a cluster or a resource of a fault.
            ConfigError: the rollout lacks the wave of a fault, or ends before a fault.
        """
        names = [cluster.name for cluster in clusters_of(self.capture)]
        for fault in self.faults:
            fault.check(names, self.manifest.waves, self.timeout)
            plural = fault.resource.partition(".")[0]
            if plural and plural not in (plurals := _plurals(self.capture)):
                raise unknown(f"--fault {fault.text!r}: no cluster has {plural!r}", plural, plurals)


def _plurals(capture: Capture) -> set[str]:
    """The plurals of what the emulated clusters serve."""
    captured = {
        resource.plural for cluster in capture.header.clusters for resource in cluster.resources
    }
    defined = {
        obj.name.partition(".")[0]
        for obj in capture.objects()
        if obj.resource == "customresourcedefinitions"
    }
    return {*built_in_plurals(), *captured, *defined}


async def rehearse(script: Script, folder: Path, tell: Tell) -> Rehearsal:
    """Rehearse in a temporary folder; every process has ended when it returns or raises.

    Raises:
        CaptureError: the capture cannot be opened, or the hub refuses the MultiClusterResource.
        ChildError: a process did not start.
    """
    clusters = clusters_of(script.capture)
    plan = StackPlan(
        layout=Layout(root=folder / "stack"),
        clusters=clusters,
        capture=script.capture.path,
        suspended=True,
        pool=len(clusters) > _MOST_WATCHERS,
        api=False,
    )
    tell(f"starting {len(clusters)} emulated clusters, and the services")
    async with Stack(plan) as stack, AdminClient(stack.admin_url) as admin:
        opened = read_opened(plan.layout.opened)
        tell(f"{opened.total if opened else 0:,} objects are in them")
        access = NatsAccess(url=stack.nats_url)
        async with (
            KubeClient(read_kube_config(stack.kubeconfig, plan.hub)) as hub,
            connected(access, name="fleetbus-rehearse") as bus,
        ):
            run = _Run(script, hub, admin, bus, tell)
            await run.play(plan.names)
            rehearsal = await run.outcome(stack.kubeconfig, plan.names)
    notes = [*(opened.notes() if opened else []), *_notes(script), *run.notes]
    return replace(rehearsal, notes=notes)


def _notes(script: Script) -> list[str]:
    notes = (
        [f"shorter timers: {', '.join(script.manifest.scaled)}"] if script.manifest.scaled else []
    )
    if _HIDDEN in script.capture.header.redacted:
        notes.append(
            "the capture hides values of environment variables, so objects that set them count as"
            " changed: `fleetbus capture --keep-values` for an exact rehearsal"
        )
    notes += missing_types(script.capture, script.manifest)
    stale = [cluster.name for cluster in script.capture.header.clusters if cluster.silent]
    if stale:
        notes.append(f"the state of {', '.join(stale)} was out of date when it was captured")
    return notes


class _Run:
    def __init__(
        self, script: Script, hub: KubeClient, admin: AdminClient, bus: Bus, tell: Tell
    ) -> None:
        self._script = script
        self._hub = hub
        self._admin = admin
        self._bus = bus
        self._tell = tell
        self._injection = Injection(admin, script.faults)
        self._follower = Follower()
        self._status: JsonObject = {}
        self._uid = ""
        self._generation = 0
        self._since: dict[str, int] = {}
        self._edited = self._changed = 0.0
        self._seconds = 0.0
        self._voted: set[str] = set()
        self._is_late = False
        self._before = CapturedResource.find(script.capture, script.manifest)
        self.notes = self._before.notes() if self._before else []

    # --- the sequence -----------------------------------------------------------------------------

    async def play(self, clusters: Sequence[str]) -> None:
        """Settle the copies, edit, and follow until nothing more happens."""
        await self._settle()
        for name in clusters:
            self._since[name] = (await self._admin.cluster(name)).commits
        first = [*self._script.manifest.waves, "all"][0]
        for fault in await self._injection.begin(first):
            self._tell(fault.text)
        self._generation = await self._edit()
        self._edited = self._changed = time.monotonic()
        self._tell("the edit is on the hub", 0.0)
        while not self._is_over():
            if self._at > self._script.timeout.total_seconds():
                self._is_late = True
                break
            await self._turn()
            await asyncio.sleep(_POLL)
        self._seconds = self._at

    @property
    def _at(self) -> float:
        return time.monotonic() - self._edited

    async def _settle(self) -> None:
        """Let the distributor take the copies over as they are, which is no news of the edit."""
        before = self._before
        if before is None or before.why_unsettled:
            return
        written = await self._update(lambda live: {**live, "spec": before.settled_spec})
        if written is None:
            return  # the emulated hub has refused it, as a note says
        self._tell("the distributor takes over what is deployed")
        self._generation = int(written["metadata"].get("generation", 0))
        end = time.monotonic() + self._script.timeout.total_seconds()
        self._changed = time.monotonic()
        while not self._is_settled() and time.monotonic() < end:
            await self._read_status()
            await asyncio.sleep(_POLL)
        self._status = {}

    async def _read_status(self) -> None:
        metadata = self._script.manifest
        with suppress(KubeError):  # the hub is slow, or dead, on purpose
            resource = await self._hub.get(RESOURCE, metadata.namespace, metadata.name)
            status = dict((resource or {}).get("status") or {})
            if status != self._status:
                self._status, self._changed = status, time.monotonic()

    async def _turn(self) -> None:
        await self._read_status()
        if self._status.get("observedGeneration") == self._generation:  # not that before the edit
            for text in self._follower.see(self._status, self._at):
                self._tell(text, self._at)
        for fault in await self._injection.follow(self._waves(), self._at):
            self._changed = time.monotonic()
            self._tell(fault.text, self._at)
        await self._vote()

    def _waves(self) -> list[tuple[str, Sequence[str], bool]]:
        waves = list(self._follower.waves.values())
        if "rollout" not in self._script.manifest.spec:
            return [("all", list(cluster_results(self._status, ())), True)]
        return [(wave.name, wave.clusters, wave.opened is not None) for wave in waves]

    async def _edit(self) -> int:
        """Write the MultiClusterResource as an editor would; returns its generation."""
        manifest = self._script.manifest
        document = manifest.document

        def edited(live: JsonObject) -> JsonObject:
            metadata = {**live["metadata"]}
            for name in ("labels", "annotations"):
                metadata[name] = {
                    **(metadata.get(name) or {}),
                    **(document["metadata"].get(name) or {}),
                }
            return {**live, "metadata": metadata, "spec": manifest.spec}

        written = await self._update(edited)
        if written is None:
            with self._refusals():
                written = await self._hub.create(RESOURCE, document)
        self._uid = str(written["metadata"]["uid"])
        return int(written["metadata"].get("generation", 0))

    async def _update(self, change: Callable[[JsonObject], JsonObject]) -> JsonObject | None:
        """Update the MultiClusterResource, whoever else does; None if the hub has none."""
        manifest = self._script.manifest
        with self._refusals():
            for last in (False, False, True):
                live = await self._hub.get(RESOURCE, manifest.namespace, manifest.name)
                if live is None:
                    break
                try:
                    return await self._hub.update(RESOURCE, change(live))
                except Conflict:  # the distributor has written it meanwhile
                    if last:
                        raise
        return None

    @contextmanager
    def _refusals(self) -> Generator[None]:
        manifest = self._script.manifest
        try:
            yield
        except KubeError as e:
            raise CaptureError(
                f"{manifest.namespace}/{manifest.name}: the hub refused it: {e}"
            ) from e

    # --- the end ----------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return not self._injection.is_timed and self._is_settled()

    def _is_settled(self) -> bool:
        if self._status.get("observedGeneration") != self._generation:
            return False
        quiet = time.monotonic() - self._changed
        rollout = cast("JsonObject", self._status.get("rollout") or {})
        phase = str(rollout.get("phase", ""))
        if self._is_ready() or refusal(self._status):
            return quiet > _SETTLED / 3
        if phase in ("Failed", "Held", "Paused", "Complete") or "held" in self._status:
            return quiet > (_STUCK if phase == "Complete" else _SETTLED)
        if phase == "Progressing":
            return bool(self._open_votes()) and quiet > _SETTLED
        return quiet > _STUCK

    def _is_ready(self) -> bool:
        conditions = cast("list[JsonObject]", self._status.get("conditions") or [])
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in conditions
        )

    def _open_votes(self) -> list[tuple[str, str]]:
        """Wave and name of the gates that wait for nothing but a vote."""
        rollout = cast("JsonObject", self._status.get("rollout") or {})
        votes: list[tuple[str, str]] = []
        for wave in cast("list[JsonObject]", rollout.get("waves") or []):
            listed = cast("list[JsonObject]", wave.get("gates") or [])
            gates = {str(gate["name"]): str(gate["state"]) for gate in listed}
            if wave["phase"] != "Open" or gates.get("health") != "Passed":
                continue
            votes += [
                (str(wave["name"]), name)
                for name, state in gates.items()
                if state == "Pending" and name not in ("health", "quiet")
            ]
        return votes

    async def _vote(self) -> None:
        for wave, gate in self._open_votes():
            chosen = self._script.votes.get(gate)
            if chosen is None or f"{wave}.{gate}" in self._voted:
                continue
            self._voted.add(f"{wave}.{gate}")
            subject = vote_subject(str(self._status["rollout"]["votes"]), wave, gate)
            body = b'{"vote": "%b", "reason": "rehearsal"}' % chosen.encode()
            with suppress(FleetbusError):
                await self._bus.request(subject, body)
            self._tell(f"vote on {wave}.{gate}: {chosen}", self._at)

    # --- what came of it --------------------------------------------------------------------------

    async def outcome(self, kubeconfig: Path, names: Sequence[str]) -> Rehearsal:
        """Gather the outcome from the status, and from every write that was committed."""
        waves = list(self._follower.waves.values())
        results = cluster_results(self._status, waves)
        for name in names:
            await self._note_writes(name, results)
        for cluster in results.values():
            await self._note_left_alone(cluster, kubeconfig)
        ordered = sorted(
            results.values(), key=lambda cluster: _place(cluster, [w.name for w in waves])
        )
        result, why = decide(
            self._status, waves, ordered, self._injection.broken, is_late=self._is_late
        )
        return Rehearsal(
            result=result,
            why=why,
            seconds=round(self._seconds, 1),
            phase=self._follower.phase,
            waves=[_rounded(wave) for wave in waves],
            clusters=ordered,
            faults=[(fault.text, round(at, 1)) for fault, at in self._injection.fired],
            missed=[fault.text for fault in self._injection.left],
            held=cast("JsonObject", self._status.get("held") or {}),
            notes=[],
        )

    async def _note_writes(self, cluster: str, results: dict[str, ClusterResult]) -> None:
        """Note what the distributor wrote; an object once, by the sum of its writes."""
        writes: dict[str, list[str]] = {}
        async for commit in self._admin.truth(cluster, since=self._since[cluster]):
            internal = commit.group in _INTERNAL or commit.resource == "controllerrevisions"
            if DISTRIBUTOR in commit.agent and not internal and commit.resource != "events":
                place = "/".join(segment for segment in (commit.namespace, commit.name) if segment)
                key = f"{commit.group or 'core'}/{commit.resource} {place}"
                writes.setdefault(key, []).append(commit.type)
        if not writes:
            return
        result = results.setdefault(cluster, ClusterResult(cluster))
        for key, types in sorted(writes.items()):
            if types[-1] == "DELETED":
                result.deleted.append(key)
            else:
                (result.created if types[0] == "ADDED" else result.changed).append(key)

    async def _note_left_alone(self, cluster: ClusterResult, kubeconfig: Path) -> None:
        await self._admin.clear_faults(cluster.name)
        await self._admin.heal(cluster.name)
        kinds = {(t["apiVersion"], t["kind"]) for t in self._script.manifest.templates}
        owned: set[str] = set()
        async with KubeClient(read_kube_config(kubeconfig, cluster.name)) as client:
            for api_version, kind in sorted(kinds):
                with suppress(KubeError):
                    served = await client.discover(str(api_version), str(kind))
                    if served is None:
                        continue
                    selector = f"{OWNER_UID_LABEL}={self._uid}"
                    for obj in await client.list(served.resource, label_selector=selector):
                        meta = obj["metadata"]
                        place = "/".join(p for p in (meta.get("namespace"), meta["name"]) if p)
                        owned.add(f"{served.resource.key} {place}")
        cluster.left_alone = len(
            owned.difference(cluster.created, cluster.changed, cluster.deleted)
        )


def _rounded(wave: Any) -> Any:
    return replace(
        wave,
        opened=None if wave.opened is None else round(wave.opened, 1),
        ended=None if wave.ended is None else round(wave.ended, 1),
    )


def _place(cluster: ClusterResult, waves: Sequence[str]) -> tuple[int, str]:
    return (waves.index(cluster.wave) if cluster.wave in waves else len(waves), cluster.name)
