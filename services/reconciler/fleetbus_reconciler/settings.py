"""Settings of the reconciler service: environment variables `FLEETBUS_RECONCILER_…`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.process.settings import Duration

PositiveDuration = Annotated[Duration, Field(gt=timedelta())]
_SILENCE_LOOK: Final = timedelta(seconds=5)


class ReconcilerSettings(BaseSettings):
    """What this process runs, and how careful the projector is."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_RECONCILER_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    modules: list[str] = Field(default_factory=list)
    """Python files or module names that define controllers, as a JSON list."""

    projector: bool = True
    """Whether this process also runs the projector; at least one process must."""

    fuse_objects: int = Field(default=20, ge=0)
    """Deletions that one relist may find before they are held and looked at again (rule P7)."""

    fuse_percent: int = Field(default=50, ge=0, le=100)
    """… and what share of the resource they may be; both must be passed for a hold."""

    fuse_wait: Annotated[Duration, Field(ge=timedelta())] = timedelta(seconds=30)
    """How long after the first look a second list must have been made to release a hold."""

    audit_wait: PositiveDuration = timedelta(seconds=30)
    """How long what an audit found must last, once every event of before is on the bus, to count
    (rule P15): so long a slow projector may take to read them."""

    last_state_kept: PositiveDuration = timedelta(hours=1)
    """How long the snapshot keeps what a deleted object was last (rule P3), unless its tombstone
    goes before: long enough for a reconciler that was away to see it, and a bound for clusters
    whose objects come and go. A full store drops all of them."""

    incomplete_wait: PositiveDuration = timedelta(minutes=2)
    """How long an epoch may miss objects that its end marker counted before a new one is asked
    for (rule P5)."""

    epochs_at_once: int = Field(default=10, ge=1)
    """Lists that may run at the same time over the whole fleet (rule W7): enough to keep the
    projector busy, and few enough that a relist of everything does not drown live events."""

    epochs_per_cluster: int = Field(default=4, ge=1)
    """… and of one cluster: twice what a watcher lists at once, so that a list whose end is still
    to be read does not hold up the next, and two replicas both get on."""

    epochs_percent: int = Field(default=50, ge=1, le=100)
    """How much of the stream's byte limit running lists may fill before the projector has read
    them; the other half is for live events, slower consumers and wrong estimates. The lists of one
    cluster may fill half of it; a larger one runs alone."""

    epoch_idle: PositiveDuration = timedelta(minutes=2)
    """A granted list of which nothing arrives for so long is given up for dead. Longer than the 90
    s after which a watcher itself gives up an API server that is silent."""

    stream_max_bytes: int = Field(default=2 * 1024**3, ge=1024**2)
    """Byte limit of the stream of events, used when it is created; a stream that exists with
    another limit is refused (rule B12)."""

    bucket_max_bytes: int = Field(default=512 * 1024**2, ge=1024**2)
    """Likewise of the key-value bucket: some 1 KiB for each resource of each cluster, so that the
    default is enough for 1,000 clusters with 500 resources each."""

    unwatched_after: PositiveDuration = timedelta(seconds=90)
    """How long no watcher may have watched a resource, a namespace or a selection before its
    objects leave the snapshot, as unwatched and not as deleted (rule P6). Longer than any pause
    between two heartbeats of one watcher."""

    stale_after: PositiveDuration = timedelta(seconds=90)
    """A resource not heard of for so long is shown as stale, at the latest (rule P17)."""

    @property
    def silence_look(self) -> timedelta:
        """How often the projector looks for silent resources."""
        return min(_SILENCE_LOOK, self.stale_after / 4)

    @property
    def silent_after(self) -> timedelta:
        """Silence that a look calls stale, so that it is shown before `stale_after` is over.

        The next look, and the writing of the Cluster's status after it, would be too late.
        """
        return self.stale_after - 1.2 * self.silence_look
