"""The interface of emulated clusters, which fleetbus-devfleet provides.

The SDK does not import devfleet; it loads it through entry points.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from fleetbus.errors import ConfigError
from fleetbus_proto.events import Event

JsonObject = dict[str, Any]

_GROUP = "fleetbus.testing"


class FedType(Protocol):
    """A type whose objects a feed reports."""

    @property
    def group(self) -> str:
        """`core` for the core group."""
        ...

    @property
    def version(self) -> str:
        """Like `v1`."""
        ...

    @property
    def plural(self) -> str:
        """Like `pods`."""
        ...

    @property
    def kind(self) -> str:
        """Like `Pod`."""
        ...

    @property
    def namespaced(self) -> bool:
        """Whether its objects are in namespaces."""
        ...


class Feed(Protocol):
    """The committed writes of an emulated cluster as events, without delay."""

    def types(self) -> Sequence[FedType]:
        """Return the types that the cluster has, or has had."""
        ...

    def take(self) -> list[Event]:
        """Return the events since the last call; at first, one for each object."""
        ...

    def close(self) -> None:
        """Stop recording."""
        ...


class LoggedRequest(Protocol):
    """One request that an API server received."""

    @property
    def verb(self) -> str:
        """Like `get`, `list`, `create`, `patch`."""
        ...

    @property
    def path(self) -> str:
        """Without the query."""
        ...

    @property
    def user_agent(self) -> str:
        """The User-Agent header."""
        ...

    @property
    def status(self) -> int:
        """Status of the response; 0 if there was none."""
        ...


class EmulatedCluster(Protocol):
    """One cluster of an emulated fleet; every method may be called from any thread.

    Types are named by a string: `v1/pods`, `apps/v1/deployments`, `example.com/v1/widgets`.
    """

    name: str

    @property
    def url(self) -> str:
        """The base URL of its API server."""
        ...

    def create(self, gvr: str, obj: JsonObject, namespace: str | None = None) -> JsonObject:
        """Create an object; the namespace may be in its metadata instead."""
        ...

    def get(self, gvr: str, namespace: str | None, name: str) -> JsonObject | None:
        """Return an object; None if there is none."""
        ...

    def list(self, gvr: str, namespace: str | None = None, labels: str = "") -> list[JsonObject]:
        """List the objects of a namespace or of all, ordered by namespace and name."""
        ...

    def update(self, gvr: str, obj: JsonObject, *, subresource: str = "") -> JsonObject:
        """Replace an object; a resourceVersion in it is checked."""
        ...

    def update_status(self, gvr: str, obj: JsonObject) -> JsonObject:
        """Replace the status of an object."""
        ...

    def patch(self, gvr: str, namespace: str | None, name: str, patch: JsonObject) -> JsonObject:
        """Merge-patch an object."""
        ...

    def apply(self, gvr: str, obj: JsonObject, *, manager: str, force: bool = False) -> JsonObject:
        """Apply an object server-side."""
        ...

    def delete(self, gvr: str, namespace: str | None, name: str) -> None:
        """Delete an object, or mark it as being deleted (finalizers, grace period of a Pod)."""
        ...

    @property
    def requests(self) -> Sequence[LoggedRequest]:
        """The latest requests, oldest first."""
        ...

    def load(self, path: Path | str) -> Sequence[JsonObject]:
        """Create all objects of a YAML file, including CRDs; return them as stored."""
        ...

    def fill(self, objects: int, *, seed: int = 0, only: Collection[str] = ()) -> Mapping[str, int]:
        """Create this many realistic objects of all or some types; return the number of each."""
        ...

    def churning(
        self, per_second: float, *, seed: int = 0, only: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        """Change its objects at this rate while the context is open."""
        ...

    def wait_for(
        self,
        gvr: str,
        namespace: str | None,
        name: str,
        condition: Callable[[JsonObject], object] = ...,
        within: timedelta = ...,
    ) -> JsonObject:
        """Wait until the object exists and meets the condition; return it.

        Raises:
            TimeoutError: it did not; the message has the object.
        """
        ...

    def settle(self, within: timedelta = ...) -> None:
        """Wait until the simulated workloads are settled."""
        ...

    def stop(self) -> None:
        """Stop its API server: connections break and are refused; its data are kept."""
        ...

    def start(self) -> None:
        """Start its API server again at the same address."""
        ...


class EmulatedFleet(Protocol):
    """Emulated clusters by name."""

    kubeconfig: Path
    """A kubeconfig with one context per cluster, named after it."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the clusters."""
        ...

    @property
    def clusters(self) -> Sequence[EmulatedCluster]:
        """The clusters."""
        ...

    def __getitem__(self, name: str) -> EmulatedCluster: ...


def emulated_fleet(
    clusters: int | Sequence[str] = 3,
    *,
    workloads: bool = True,
    tls: bool = False,
    seed: int | None = None,
) -> AbstractContextManager[EmulatedFleet]:
    """Serve emulated clusters on free loopback ports while the context is open.

    Controllers of this process may use them as members: FLEETBUS_ALLOW_LOOPBACK is set unless it
    has a value.

    Args:
        clusters: their names, or their number.
        workloads: whether Deployments become ready and Jobs complete.
        tls: serve HTTPS.
        seed: makes generated names and simulated choices repeatable.

    Raises:
        ConfigError: fleetbus-devfleet is not installed.
    """
    os.environ.setdefault("FLEETBUS_ALLOW_LOOPBACK", "1")
    for point in entry_points(group=_GROUP, name="emulated_fleet"):
        return point.load()(clusters, workloads=workloads, tls=tls, seed=seed)
    raise ConfigError("emulated clusters are not installed: pip install 'fleetbus[dev]'")


def open_feed(cluster: EmulatedCluster) -> Feed:
    """Open a feed of the objects of an emulated cluster, and of every write from now on.

    Raises:
        ConfigError: fleetbus-devfleet is not installed, or in another version.
    """
    for point in entry_points(group=_GROUP, name="open_feed"):
        return point.load()(cluster)
    raise ConfigError("tests of controllers need emulated clusters: pip install 'fleetbus[dev]'")


def shared_store() -> str:
    """Return the URL of a Valkey that is started for this process and stops with it.

    Raises:
        ConfigError: fleetbus-devfleet is not installed.
    """
    for point in entry_points(group=_GROUP, name="shared_store"):
        return str(point.load()())
    raise ConfigError("no store: give an empty Redis or Valkey, or pip install 'fleetbus[dev]'")
