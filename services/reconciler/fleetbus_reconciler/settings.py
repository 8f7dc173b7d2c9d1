"""Settings of the reconciler service: environment variables `FLEETBUS_RECONCILER_…`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.clusters.leaving import NAMESPACE
from fleetbus.process.settings import Duration
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, STREAM

PositiveDuration = Annotated[Duration, Field(gt=timedelta())]
_SILENCE_CHECK_INTERVAL: Final = timedelta(seconds=5)


class Subscriber(BaseModel):
    """A durable consumer for a program that is no controller."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    durable: Annotated[str, Field(pattern=r"^[-_a-zA-Z0-9]+$")]
    """Its name."""

    subjects: Annotated[tuple[str, ...], Field(min_length=1)]
    """The subjects that it delivers, like `fleetbus.events.eu1.>`, all of one stream."""

    @property
    def stream(self) -> str:
        """The stream that it reads."""
        return _stream_of(self.subjects[0])

    @field_validator("subjects")
    @classmethod
    def _check_subjects(cls, subjects: tuple[str, ...]) -> tuple[str, ...]:
        if len({_stream_of(subject) for subject in subjects}) > 1:
            raise ValueError(
                "a durable reads one stream: make another subscriber for fleetbus.distribution"
            )
        return subjects


def _stream_of(subject: str) -> str:
    is_distribution = subject.startswith("fleetbus.distribution.")
    return DISTRIBUTION_STREAM if is_distribution else STREAM


class ReconcilerSettings(BaseSettings):
    """Settings of the hosted controllers and of the projector."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_RECONCILER_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    name: str = Field(default="reconciler", pattern=r"^[-_a-zA-Z0-9]+(\.[-_a-zA-Z0-9]+)*$")
    """Name of the connection to NATS, whose inbox is `_INBOX.<name>`: processes with separate
    rights need separate names, or one could read the replies to another (rule S4)."""

    namespace: str = NAMESPACE
    """The namespace of fleetbus on the hub, where the records of unjoined clusters are."""

    watcher_secrets: tuple[Annotated[str, Field(pattern=r"^[^/]+/[^/]+$")], ...] = ()
    """Kubeconfig Secrets of dedicated watchers, as a JSON list of namespace/name: the projector
    renews the tokens in them, as it does in `namespace` (rule S7)."""

    subscribers: tuple[Subscriber, ...] = ()
    """Durable consumers for external programs, as a JSON list of {durable, subjects}: the projector
    creates them, because a program that may create one may read everything (rule S5)."""

    archiver: bool = False
    """Whether the projector creates the durable consumer of the archiver. If this is turned off
    again, the durable and its unread messages stay until it is deleted: `nats consumer rm
    FLEETBUS_EVENTS archiver`."""

    agents_secret: Annotated[str, Field(pattern=r"^([^/]+/[^/]+)?$")] = ""
    """The Secret with the accounts of agents for NATS, as namespace/name: the projector registers
    agents and writes it (rule S3). Empty: no agents."""

    agents_approval: bool = False
    """Whether somebody has to accept each new agent, with `fleetbus clusters accept`."""

    modules: list[str] = Field(default_factory=list)
    """Python files or module names that define controllers, as a JSON list."""

    projector: bool = True
    """Whether this process also runs the projector; at least one process must."""

    fuse_objects: int = Field(default=20, ge=0)
    """Deletions that one relist may find before they are held for a second list (rule P7)."""

    fuse_percent: int = Field(default=50, ge=0, le=100)
    """… and what percentage of the resource they may be; both must be exceeded for a hold."""

    fuse_wait: Annotated[Duration, Field(ge=timedelta())] = timedelta(seconds=30)
    """Earliest start of the second list that releases a hold, after the first one."""

    audit_wait: PositiveDuration = timedelta(seconds=30)
    """Time that a difference found by an audit must last to count, once all older events are on the
    bus (rule P15): a slow projector may take that long to read them."""

    last_state_kept: PositiveDuration = timedelta(hours=1)
    """Time for which the snapshot keeps the last state of a deleted object (rule P3), unless its
    tombstone is removed before: long enough for a reconciler that was down to see it, and a limit
    for clusters whose objects come and go. A full store drops all of them."""

    incomplete_wait: PositiveDuration = timedelta(minutes=2)
    """Time for which an epoch may lack objects that its end marker counted before a new one is
    requested (rule P5)."""

    epochs_at_once: int = Field(default=10, ge=1)
    """Lists that may run at the same time over the whole fleet (rule W7): enough to keep the
    projector busy, and few enough that a relist of everything does not drown live events."""

    epochs_per_cluster: int = Field(default=4, ge=1)
    """… and in one cluster: twice what a watcher lists at once, so that a list whose end is still
    to be read does not delay the next, and two replicas both make progress."""

    epochs_percent: int = Field(default=50, ge=1, le=100)
    """Percentage of the stream's byte limit that running lists may fill before the projector has
    read them; the other half is for live events, slower consumers and wrong estimates. The lists of
    one cluster may fill half of it; a larger one runs alone."""

    epoch_idle: PositiveDuration = timedelta(minutes=2)
    """A granted list counts as dead when nothing of it has arrived for this long. Longer than the
    90 s after which a watcher itself gives up on a silent API server."""

    stream_max_bytes: int = Field(default=2 * 1024**3, ge=1024**2)
    """Byte limit of the stream of events, used when it is created; an existing stream with another
    limit is refused (rule B12)."""

    bucket_max_bytes: int = Field(default=512 * 1024**2, ge=1024**2)
    """Byte limit of the key-value bucket, likewise: about 1 KiB for each resource of each cluster,
    so that the default is enough for 1,000 clusters with 500 resources each."""

    bus_replicas: int = Field(default=1, ge=1, le=5)
    """Number of NATS servers that store the stream, the bucket and the durables, used when they are
    created; 3 survives the loss of one server."""

    unwatched_after: PositiveDuration = timedelta(seconds=90)
    """Time without any watcher of a resource, a namespace or a selection after which its objects
    leave the snapshot, as unwatched and not as deleted (rule P6). Longer than any pause between two
    heartbeats of one watcher."""

    stale_after: PositiveDuration = timedelta(seconds=90)
    """A resource that no heartbeat has reported for this long is shown as stale (rule P17)."""

    @property
    def silence_check_interval(self) -> timedelta:
        """Interval at which the projector checks for resources without heartbeats."""
        return min(_SILENCE_CHECK_INTERVAL, self.stale_after / 4)

    @property
    def silent_after(self) -> timedelta:
        """Silence that a check marks as stale, so that it is shown before `stale_after` is over.

        The next check, and the write of the Cluster's status after it, would be too late.
        """
        return self.stale_after - 1.2 * self.silence_check_interval
