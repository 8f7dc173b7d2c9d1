"""The events of a replay: of recordings, of the stream, or of a capture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from fleetbus.archive.lines import read_line
from fleetbus.errors import ConfigError
from fleetbus.snapshot.records import ClusterRecord
from fleetbus_cli.capture.format import CapturedObject, CapturedResource
from fleetbus_cli.capture.reading import Capture
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb

_LISTED: Final = Rank("1", 1)
"""Epoch of the objects of a capture: the list that a replay calls complete."""


def read_recording(name: str, lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of a file as `fleetbus events -o json` writes it: JSON lines.

    Raises:
        ConfigError: a line is not an event (the message has its number), or not UTF-8.
    """
    try:
        for number, line in enumerate(lines, start=1):
            # `fleetbus events` writes an invalid message as a comment.
            if line.strip() and not line.startswith("#"):
                yield _read_numbered(name, number, line)
    except UnicodeDecodeError as e:
        raise ConfigError(f"{name}: not a recording: {e}") from e


def _read_numbered(name: str, number: int, line: str) -> Event:
    try:
        return read_line(line)
    except msgspec.DecodeError as e:
        raise ConfigError(f"{name}:{number}: not an event: {e}") from e


class Recording:
    """Events that can be read more than once."""

    known: Sequence[ClusterRecord] = ()
    """Clusters that it has beside those of its events."""
    resources: Sequence[CapturedResource] = ()
    """Resources that it has beside those of its events."""

    def __init__(self, parts: Sequence[tuple[str, Sequence[str] | Path]]) -> None:
        self._parts = parts

    def events(self) -> Iterator[Event]:
        """Yield all of them in order.

        Raises:
            ConfigError: a file cannot be read, or a line is not an event.
        """
        for name, source in self._parts:
            if not isinstance(source, Path):
                yield from read_recording(name, source)
                continue
            try:
                with source.open(encoding="utf-8") as lines:
                    yield from read_recording(name, lines)
            except OSError as e:
                raise ConfigError(f"{name}: {e.strerror}") from e


class CapturedRecording(Recording):
    """A capture: first what did not change in its window, then its events.

    The state of a capture is that of its end. What an object was before its first event in the
    window is not known, so such an object comes with that event.
    """

    def __init__(self, capture: Capture) -> None:
        super().__init__(())
        self._capture = capture
        header = capture.header
        self.known = [
            ClusterRecord(name=cluster.name, labels=cluster.labels, hub=cluster.hub)
            for cluster in header.clusters
        ]
        self.resources = [resource for cluster in header.clusters for resource in cluster.resources]

    def events(self) -> Iterator[Event]:
        """Yield the objects as a list finds them, then the events.

        Raises:
            CaptureError: the file has changed since it was opened.
        """
        changed = {_place(event) for event in self._capture.events()}
        for captured in self._capture.objects():
            if _place(captured) not in changed and captured.body is not None:
                yield self._listed(captured)
        yield from self._capture.events()

    def _listed(self, captured: CapturedObject) -> Event:
        cluster = self._capture.header.cluster(captured.cluster)
        types = () if cluster is None else cluster.resources
        kind = next((entry.kind for entry in types if entry.resource.key == captured.type.key), "")
        return Event(
            cluster=captured.cluster,
            incarnation=Incarnation(captured.incarnation, cluster.uid if cluster else ""),
            group=captured.group,
            version=captured.version,
            resource=captured.resource,
            kind=kind,
            namespace=captured.namespace,
            name=captured.name,
            uid=captured.uid,
            resource_version=captured.resource_version,
            verb=Verb.LISTED,
            epoch=_LISTED,
            observed_at=self._capture.header.captured_at,
            object=captured.body,
            degraded=captured.degraded,
        )


def _place(item: Event | CapturedObject) -> tuple[str, str, str, str, str]:
    return item.cluster, item.group, item.resource, item.namespace, item.name
