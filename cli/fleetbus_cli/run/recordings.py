"""The events of a replay: of recordings, of the stream, or of a capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fleetbus.errors import ConfigError
from fleetbus.snapshot.records import ClusterRecord
from fleetbus_cli.capture.format import CapturedObject, CapturedResource
from fleetbus_cli.capture.reading import Capture
from fleetbus_cli.events.recording import read_recording
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb

_LISTED: Final = Rank("1", 1)
"""Of the objects of a capture: the list that a replay calls complete."""


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
        for name, part in self._parts:
            if not isinstance(part, Path):
                yield from read_recording(name, part)
                continue
            try:
                with part.open(encoding="utf-8") as lines:
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
            ClusterRecord(name=one.name, labels=one.labels, hub=one.hub) for one in header.clusters
        ]
        self.resources = [found for one in header.clusters for found in one.resources]

    def events(self) -> Iterator[Event]:
        """Yield the objects as a list finds them, then the events.

        Raises:
            CaptureError: the file has changed since it was opened.
        """
        changed = {_place(event) for event in self._capture.events()}
        for found in self._capture.objects():
            if _place(found) not in changed and found.body is not None:
                yield self._listed(found)
        yield from self._capture.events()

    def _listed(self, found: CapturedObject) -> Event:
        cluster = self._capture.header.cluster(found.cluster)
        types = () if cluster is None else cluster.resources
        kind = next((one.kind for one in types if one.resource.key == found.type.key), "")
        return Event(
            cluster=found.cluster,
            incarnation=Incarnation(found.incarnation, cluster.uid if cluster else ""),
            group=found.group,
            version=found.version,
            resource=found.resource,
            kind=kind,
            namespace=found.namespace,
            name=found.name,
            uid=found.uid,
            resource_version=found.resource_version,
            verb=Verb.LISTED,
            epoch=_LISTED,
            observed_at=self._capture.header.captured_at,
            object=found.body,
            degraded=found.degraded,
        )


def _place(found: Event | CapturedObject) -> tuple[str, str, str, str, str]:
    return found.cluster, found.group, found.resource, found.namespace, found.name
