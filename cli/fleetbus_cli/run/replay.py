"""Runs `fleetbus replay`: feeds recorded events to controllers and prints their writes (rule R9).

It shares nothing with controllers in production: the snapshot is in a store of its own, the queues
are in this process, and the stream is read by a consumer that acknowledges nothing. Without --live
no client exists that could write anywhere.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import unified_diff
from typing import Any, Final, Self

from redis.exceptions import RedisError

from fleetbus.archive.lines import to_line
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers.build import build_clusters
from fleetbus.clusters.registry import Clusters, MakeClient
from fleetbus.controller.controller import Controller
from fleetbus.controller.load import load_controllers
from fleetbus.errors import ConfigError, StoreError
from fleetbus.kube.client import Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process import printer
from fleetbus.process.clock import utc_now
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord, ResourceRecord, ResourceState
from fleetbus.snapshot.shards import find_shards
from fleetbus.store.connection import connect
from fleetbus.testing.emulated import shared_store
from fleetbus.testing.harness import StaticProvider, empty_store
from fleetbus.testing.replay_client import ReplayFleet, ReplayWrite
from fleetbus.testing.reporting_client import ReportingClient
from fleetbus.testing.runner import ControllerRunner, describe_failure
from fleetbus_cli.capture.reading import Capture
from fleetbus_cli.documents import render_yaml, without_managed_fields
from fleetbus_cli.events.events import parse_since
from fleetbus_cli.events.history import read_events
from fleetbus_cli.nats import connect_nats
from fleetbus_cli.run.recordings import CapturedRecording, Recording
from fleetbus_cli.run.run import run_settings
from fleetbus_cli.store import connect_store
from fleetbus_cli.target import resolve_target
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import Resource, parse_resource
from fleetbus_proto.subjects import EVENTS_ALL

_RECORDING: Final = (".jsonl", ".json")
_FAILED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The checked arguments."""

    files: Sequence[str]
    capture: pathlib.Path | None
    modules: Sequence[str]
    since: timedelta | None
    clusters: dict[str, dict[str, str]]
    """Labels by name."""
    hub: str
    resources: Sequence[Resource]
    live: bool
    kubeconfigs: Sequence[pathlib.Path]
    store: str
    output: str
    nats_url: str | None

    @classmethod
    def read(
        cls,
        names: Sequence[str],
        *,
        since: str,
        capture: pathlib.Path | None = None,
        clusters: Sequence[str],
        resources: Sequence[str],
        output: str,
        **more: Any,
    ) -> Self:
        """Check the arguments.

        Raises:
            ConfigError: one is invalid, or there is nothing to replay or to run.
        """
        files = [name for name in names if name == "-" or name.endswith(_RECORDING)]
        modules = [name for name in names if name not in files]
        if not modules:
            raise ConfigError("no module given: name a Python file or module with controllers")
        if [bool(files), bool(since), capture is not None].count(True) != 1:
            raise ConfigError(
                "give either recordings (FILE.jsonl), or a capture with --from FILE, or --since,"
                " like --since 1h"
            )
        try:
            parsed = [parse_resource(text) for text in resources]
        except InvalidName as e:
            raise ConfigError(f"--resource: {e}") from e
        return cls(
            files=files,
            capture=capture,
            modules=modules,
            since=parse_since(since) if since else None,
            clusters=dict(map(_labelled, clusters)),
            resources=parsed,
            output=output,
            **more,
        )


def _labelled(text: str) -> tuple[str, dict[str, str]]:
    name, _, labels = text.partition(":")
    pairs = [pair.partition("=") for pair in labels.split(",") if pair]
    return name, {key: value for key, _, value in pairs}


def run_replay(options: ReplayOptions) -> int:
    """Replay until the end or an interrupt; return the exit status, 1 if a request kept failing.

    Every failure of a reconcile function is logged to stderr.
    """
    failed = 0

    async def replay() -> None:
        nonlocal failed
        failed = await _replay(options, await _recording(options))

    async def main() -> None:
        set_up_logs("text", "error")
        await run_until_stopped(replay=replay())

    ended = run_service("fleetbus replay", main, is_command=True)
    return ended or (_FAILED if failed else 0)


async def _recording(options: ReplayOptions) -> Recording:
    if options.capture is not None:
        return CapturedRecording(Capture.open(options.capture))
    if options.since:
        lines = await _record(options, datetime.now(UTC) - options.since)
        return Recording([("the stream", lines)])
    return Recording(
        [(name, list(sys.stdin) if name == "-" else pathlib.Path(name)) for name in options.files]
    )


async def _record(options: ReplayOptions, start: datetime) -> list[str]:
    """Record the stream, with an ephemeral consumer that acknowledges nothing."""
    access = resolve_target(nats_url=options.nats_url).require_nats()
    async with connect_nats(access, name="fleetbus-replay") as bus:
        events = read_events(bus, subject=EVENTS_ALL, start=start)
        return [to_line(event) async for event, _ in events]


# --- the replay itself ------------------------------------------------------------------------


async def _replay(options: ReplayOptions, recording: Recording) -> int:
    """Run the controllers on the events; return how many requests kept failing."""
    controllers = load_controllers(list(options.modules))
    clusters = await _known_clusters(options) if options.since else recording.known
    fleet = _RecordedFleet(recording, options, controllers, clusters)
    printer = _Printer(options.output)
    async with AsyncExitStack() as stack:
        redis = await connect(options.store or shared_store())
        stack.push_async_callback(redis.aclose)
        await empty_store(redis)

        async def feed(events: Sequence[Event]) -> None:
            await runner.feed(events)

        dry_run = ReplayFleet(SnapshotReader(redis, SnapshotKeys()), printer.show, feed=feed)
        is_live = options.live
        registry = _live_clusters(options, dry_run) if is_live else fleet.registry(dry_run.client)
        runner = ControllerRunner(controllers, redis, registry, gives_up=True)
        await fleet.announce(runner)
        stack.push_async_callback(runner.aclose)
        await runner.start()
        for event in recording.events():
            dry_run.learn([event])
            await runner.feed([event])
            await runner.run_until_idle(_no_more_events)
    for run in runner.given_up.values():
        _print_status(f"{describe_failure(run)}; that was attempt {run.attempt}")
    writes = "writes were sent" if options.live else f"{printer.count} writes, none sent"
    _print_status(f"{fleet.events} events, {len(runner.requests)} runs; {writes}")
    if fleet.unlabelled:
        names = ", ".join(sorted(fleet.unlabelled))
        _print_status(
            f"a controller asked for the labels of {names}, which are not recorded:"
            f" give them with --cluster {min(fleet.unlabelled)}:KEY=VALUE"
        )
    return len(runner.given_up)


async def _known_clusters(options: ReplayOptions) -> Sequence[ClusterRecord]:
    """Read the fleet's clusters and their labels, which events lack; none without its store."""
    target = resolve_target(nats_url=options.nats_url)
    if not target.redis_url:
        return ()
    try:
        redis: Any = await connect_store(target.require_store())
        async with redis:
            return await SnapshotReader(redis, await find_shards(redis)).clusters()
    except (StoreError, RedisError):
        return ()


async def _no_more_events() -> bool:
    return False


def _live_clusters(options: ReplayOptions, dry_run: ReplayFleet) -> Clusters:
    target = resolve_target(nats_url=options.nats_url)
    return build_clusters(
        run_settings(target, options.kubeconfigs, [], needs_bus=False),
        make_client=lambda info: ReportingClient(info, dry_run.sent),
    )


class _UnknownLabels(Mapping[str, str]):
    """The labels of a cluster that nobody has named: empty, but notes who asks for them."""

    def __init__(self, cluster: str, names: set[str]) -> None:
        self._cluster = cluster
        self._asked = names

    def __getitem__(self, key: str) -> str:
        self._asked.add(self._cluster)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        self._asked.add(self._cluster)
        return iter(())

    def __len__(self) -> int:
        return 0


class _RecordedFleet:
    """The clusters of a recording, and their resources."""

    def __init__(
        self,
        recording: Recording,
        options: ReplayOptions,
        controllers: Sequence[Controller],
        records: Sequence[ClusterRecord],
    ) -> None:
        self.events = 0
        self.unlabelled: set[str] = set()
        """Clusters without known labels whose labels were asked for."""
        self._known = frozenset(record.name for record in records)
        self._labels = {record.name: record.labels for record in records} | options.clusters
        self._hub = options.hub or next((record.name for record in records if record.hub), "")
        self._names = {name for name in (*self._labels, self._hub) if name}
        self._resources: dict[str, tuple[Resource, str, bool]] = {}
        for resource in [*options.resources, *_watched(controllers)]:
            self._resources.setdefault(resource.key, (resource, "", True))
        for captured in recording.resources:
            self._resources[captured.resource.key] = (
                captured.resource,
                captured.kind,
                captured.namespaced,
            )
        for event in recording.events():
            self.events += 1
            self._names.add(event.cluster)
            event_resource = Resource(event.group, event.version, event.resource)
            self._resources[event_resource.key] = (
                event_resource,
                event.kind,
                bool(event.namespace),
            )

    def registry(self, make_client: MakeClient) -> Clusters:
        """Build the registry of the clusters, with clients from `make_client`."""
        infos = [
            ClusterInfo(
                name=name,
                labels=self._labels_of(name),
                hub=name == self._hub,
                provider="replay",
                config=KubeConfig("", source="replay"),
            )
            for name in sorted(self._names)
        ]
        return Clusters([StaticProvider(infos)], make_client=make_client)

    def _labels_of(self, name: str) -> Mapping[str, str]:
        if labels := self._labels.get(name):
            return labels
        return {} if name in self._known else _UnknownLabels(name, self.unlabelled)

    async def announce(self, runner: ControllerRunner) -> None:
        """Mark every resource as synced: what the recording lacks does not exist (rule P14)."""
        for name in self._names:
            await runner.writer.put_cluster(
                name, ClusterRecord(name=name, connected=True, last_answer=utc_now())
            )
            for resource, kind, is_namespaced in self._resources.values():
                record = ResourceRecord(
                    group=resource.group,
                    version=resource.version,
                    plural=resource.plural,
                    kind=kind,
                    namespaced=is_namespaced,
                    state=ResourceState.SYNCED,
                    last_received=utc_now(),
                    epoch="1 1",
                )
                await runner.writer.put_resource_state(name, record)


def _watched(controllers: Sequence[Controller]) -> list[Resource]:
    watches = [watch for controller in controllers for watch in controller.watches]
    return [watch.resource for watch in watches if watch.resource is not None]


class _Printer:
    """Prints the writes that were not sent."""

    def __init__(self, output: str) -> None:
        self._output = output
        self.count = 0

    def show(self, write: ReplayWrite) -> None:
        """Print one."""
        self.count += 1
        if self._output == "json":
            fields = {name: getattr(write, name) for name in ReplayWrite.__slots__}
            printer.json_text(json.dumps(fields), flush=True)
            return
        place = "/".join(segment for segment in (write.namespace, write.name) if segment)
        printer.line(f"{write.cluster} {write.verb} {write.resource} {place}")
        lines = unified_diff(_lines(write.before), _lines(write.after), n=2, lineterm="")
        for line in list(lines)[2:]:  # without the header lines of the diff
            printer.line(f"  {line}")
        printer.flush()


def _lines(obj: Object | None) -> list[str]:
    return render_yaml(without_managed_fields(obj)).splitlines() if obj else []


def _print_status(text: str) -> None:
    printer.note(f"fleetbus replay: {text}")
