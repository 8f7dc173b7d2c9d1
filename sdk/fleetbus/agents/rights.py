"""The rights of the watchers and agents of one cluster on NATS (rule S3).

The chart gives a watcher on the hub the same rights in `fleetbus.watcherRights`; a test compares
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import (
    STREAM,
    api_subject,
    check_cluster,
    control_subject,
    registration_subject,
)

INBOX: Final = "_INBOX."
_GET: Final = "$JS.API.DIRECT.GET"


@dataclass(frozen=True, slots=True)
class Rights:
    """Subjects that a user may publish to and subscribe to, and no others."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    @property
    def imported(self) -> tuple[str, ...]:
        """Its subjects to subscribe to, but for the inboxes, which are its account's own."""
        return tuple(one for one in self.subscribe if not one.startswith(INBOX))


def watcher_rights(cluster: str) -> Rights:
    """The rights of the watcher of a cluster."""
    check_cluster(cluster)
    bucket = f"KV_{KV_BUCKET}.$KV.{KV_BUCKET}"
    return Rights(
        publish=(
            f"fleetbus.events.{cluster}.>",
            f"fleetbus.epochs.{cluster}.>",
            f"fleetbus.status.{cluster}.>",
            f"$KV.{KV_BUCKET}.{cluster}.>",
            f"{_GET}.{bucket}.{cluster}.>",
            f"{_GET}.{bucket}._hub.{cluster}.>",
            f"{_GET}.{STREAM}.fleetbus.status.{cluster}.>",
        ),
        subscribe=(f"{INBOX}watcher.{cluster}.>", control_subject(cluster)),
    )


def agent_rights(cluster: str) -> Rights:
    """The rights of an agent: to answer calls for its cluster, and all that its watcher does."""
    watcher = watcher_rights(cluster)
    return Rights(
        publish=(
            *watcher.publish,
            f"fleetbus.answers.{cluster}.>",
            registration_subject(cluster),
        ),
        subscribe=(
            *watcher.subscribe,
            f"{INBOX}agent.{cluster}.>",
            api_subject(cluster),
            f"{api_subject(cluster)}.>",
        ),
    )


def registration_rights(cluster: str) -> Rights:
    """The rights of a one-time nkey: to register once."""
    return Rights((registration_subject(cluster),), (f"{INBOX}registration.{cluster}.>",))
