"""Settings of the watcher: environment variables with the prefix `FLEETBUS_WATCHER_`."""

from __future__ import annotations

import pathlib
import socket
from datetime import timedelta
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.kube.connection.backoff import BackoffPolicy
from fleetbus.kube.list_watch.reflect import WatchTimeouts
from fleetbus.kube.selectors import InvalidSelector, LabelSelector
from fleetbus.kube.unwatched_types import DENIED
from fleetbus.process.settings import Duration
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import Resource, is_usual_version, parse_resource_name
from fleetbus_proto.subjects import check_cluster
from fleetbus_watcher.transform.rules import Rule, RulesFromFile
from fleetbus_watcher.transform.transform import transform_of

ALL = "*"
"""Every resource that discovery returns and no other entry names, except the deny list."""
DEDICATED = "fleetbus.dev/watcher"
"""The label of a cluster that has its own watcher, with the value `dedicated`."""


class Selection(BaseModel):
    """One entry of `resources`: a resource, and what narrows it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    resource: str
    """`pods`, `apps/v1/deployments`, `deployments.apps`, or `*`."""

    namespaces: tuple[str, ...] = ()
    """Only these namespaces; empty means all."""

    label_selector: str = Field(default="", alias="labelSelector")
    """Only objects with these labels; the API server evaluates it."""

    field_selector: str = Field(default="", alias="fieldSelector")
    """Only objects with these fields; the API server evaluates it."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"resource": value} if isinstance(value, str) else value

    @field_validator("resource")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if value != ALL:
            try:
                parse_resource_name(value)
            except InvalidName as e:
                raise ValueError(str(e)) from e
        return value

    @model_validator(mode="after")
    def _all_is_not_narrowed(self) -> Selection:
        if self.resource == ALL and (self.namespaces or self.label_selector or self.field_selector):
            raise ValueError("'*' cannot be narrowed; name the resources")
        return self


def check_denied(text: str) -> str:
    """Validate an entry of a deny list.

    Raises:
        ValueError: it is not `<group>/<plural>`.
    """
    group, _, plural = text.partition("/")
    if not plural or "/" in plural or is_usual_version(group):
        raise ValueError(f"{text!r} is not <group>/<plural>, like core/events")
    return text


class WatcherSettings(BaseSettings):
    """Which cluster and resources to watch, and with which timeouts."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_WATCHER_", frozen=True, use_attribute_docstrings=True, extra="ignore"
    )

    cluster: str
    """Name of the cluster in the fleet, a DNS-1123 label; it must never mean another cluster."""

    replica: str = Field(default_factory=socket.gethostname)
    """Name of this process among the watchers of the cluster; stable over restarts (rule W9)."""

    kubeconfig: pathlib.Path | None = None
    """Kubeconfig of the cluster; without it the pod's service account is used."""

    context: str = ""
    """Context in that file; empty means its current context."""

    resources: tuple[Selection, ...] = (Selection(resource=ALL),)
    """JSON list of names, or of objects {resource, namespaces, labelSelector, fieldSelector}."""

    deny: tuple[Annotated[str, AfterValidator(check_denied)], ...] = DENIED
    """Resources that `*` leaves out, as group/plural: noisy, and of no use to controllers.
    Metrics and reviews are always left out, and Secrets unless `secrets` is set."""

    secrets: bool = False
    """Watch Secrets too, without their values: the bus keeps events for a day, and many consumers
    read them. Helm releases are never watched (rule S1)."""

    transforms: tuple[Rule, ...] = ()
    """JSON list of objects {resource, drop, redact, keepManagedFields}: what to drop and redact
    before objects are published, in addition to the defaults."""

    transforms_file: RulesFromFile = ()
    """A YAML or JSON file with more of these, read once at the start."""

    discovery_interval: Duration = timedelta(seconds=30)
    """Interval at which discovery is refreshed; a changed CRD refreshes it at once."""

    page_size: int = Field(default=500, ge=1)
    """Objects per page of a list; more would need more memory (rule W14)."""

    lists_at_once: int = Field(default=2, ge=1)
    """Lists that run at the same time; a relist storm overloads a weak API server (rule W19)."""

    grant_patience: Annotated[Duration, Field(ge=timedelta())] = timedelta(seconds=60)
    """Time that an epoch waits for an answer of the projector before it runs without a grant, one
    at a time (rule W7); a restarted projector is back well before that. 0 never requests a grant,
    for a watcher without a projector."""

    audit_shortest: Annotated[Duration, Field(ge=timedelta())] = timedelta(minutes=10)
    """The longest time between two audits of a small resource, and so the longest time for which a
    deletion that the API server never sent stays unnoticed (rule W18). 0 audits only on request."""

    audit_longest: Annotated[Duration, Field(ge=timedelta())] = timedelta(hours=6)
    """The same for a resource with 100,000 objects or more; in between it grows with their number,
    so that audits of a large resource read five to ten objects a second on average."""

    silence: Duration = timedelta(seconds=90)
    """A list that received no byte for this long, or a watch not accepted by then, has failed."""

    watch_lasts: Annotated[Duration, Field(gt=timedelta())] = timedelta(minutes=5)
    """Duration of a watch, or randomly up to twice as long, before it is opened again: this proves
    that it still reaches the API server, however quiet it was (rule W11)."""

    backoff_first: Duration = timedelta(seconds=0.8)
    """The first pause after a failure; doubled each time, client-go's value (W19)."""

    backoff_cap: Duration = timedelta(seconds=12)
    """The longest pause after a failure, before its jitter, which may double it (rule W19). With
    client-go's 30 s, and so up to 60 s, a cluster would not be in sync 30 s after its server was
    repaired; this leaves some seconds for the list."""

    heartbeat_busy: Duration = timedelta(seconds=5)
    """Time between heartbeats, and so between checkpoints, while events flow (rule W9)."""

    heartbeat_idle: Duration = timedelta(seconds=15)
    """Time between heartbeats without events. A quiet API server is probed every 10 s, and 10 + 15
    stays below the 30 s after which a cluster counts as incomplete (rule A4)."""

    stop_patience: Duration = timedelta(seconds=5)
    """Time that a stop waits for acknowledgements; it only saves duplicates (rule W21)."""

    @field_validator("cluster")
    @classmethod
    def _is_a_cluster(cls, value: str) -> str:
        try:
            return check_cluster(value)
        except InvalidName as e:
            raise ValueError(str(e)) from e

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The transform rules of both settings; all of them apply."""
        return self.transforms + self.transforms_file

    def transform_version(self, resource: Resource) -> str:
        """Return the version of the transform of a resource, for its checkpoint (rule W5)."""
        return transform_of(self.rules, resource.key).version

    @property
    def watch_times(self) -> WatchTimeouts:
        """Duration of a watch; silence is checked for the API server, not for each watch."""
        return WatchTimeouts(
            open_timeout=self.silence, duration=self.watch_lasts, idle_timeout=None
        )

    @property
    def backoff(self) -> BackoffPolicy:
        """The pauses after failures."""
        return BackoffPolicy(first=self.backoff_first, cap=self.backoff_cap)


class PoolSettings(BaseSettings):
    """Which clusters the pool takes, and how fast a dead member is replaced."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_WATCHER_POOL_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    selector: str = f"{DEDICATED}!=dedicated"
    """Label selector of the clusters that the pool watches; other clusters need dedicated watchers,
    started with `--cluster`. Members with the same selector are one pool."""

    lease: Annotated[Duration, Field(ge=timedelta(milliseconds=100))] = timedelta(seconds=5)
    """A member that is silent for this long is replaced. Five renewals: less would replace a member
    whose machine is only busy, and two members that watch the same cluster do twice the work."""

    hand_over: Annotated[Duration, Field(ge=timedelta())] = timedelta(seconds=20)
    """Time that a stop waits for other members to take over; below the 30 s after which Kubernetes
    kills a pod."""

    lists_at_once: int = Field(default=8, ge=1)
    """Lists of this process that run at the same time, over all its clusters (rule W14)."""

    @field_validator("selector")
    @classmethod
    def _is_a_selector(cls, value: str) -> str:
        try:
            LabelSelector.parse(value)
        except InvalidSelector as e:
            raise ValueError(str(e)) from e
        return value

    @property
    def interval(self) -> timedelta:
        """Between two renewals, and between two reads of those of other members."""
        return self.lease / 5
