"""Emulated clusters for tests and scripts, in a thread of their own.

    with emulated_fleet(["alpha", "beta"]) as fleet:
        alpha = fleet["alpha"]
        alpha.load("manifests.yaml")
        run_something_with(fleet.kubeconfig)                # real clients, in any process
        alpha.wait_for("apps/v1/deployments", "default", "web", is_available)
        with alpha.fault(Fail(503), verb="list"):
            ...

The event loop of the clusters is not the caller's, so a blocking caller and an async one are
served alike, and a test that blocks its own loop does not stop the API servers.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.cluster_names import check_names, default_names
from fleetbus_emulator.controllers import EVERYTHING, HOUSEKEEPING, Timing, simulate
from fleetbus_emulator.emulated_cluster import EmulatedCluster
from fleetbus_emulator.loop_thread import LoopThread
from fleetbus_emulator.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
    from datetime import timedelta
    from pathlib import Path

    from fleetbus_emulator.apiserver import Access, ApiServers, User
    from fleetbus_emulator.controllers import Simulator


class EmulatedFleet:
    """Emulated clusters by name: `fleet["alpha"]`, in the order they were named.

    Attributes:
        kubeconfig: a kubeconfig with one context per cluster, named after it.
    """

    def __init__(
        self,
        clusters: Sequence[EmulatedCluster],
        servers: ApiServers,
        loop: LoopThread,
        kubeconfig: Path,
    ) -> None:
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self._servers = servers
        self._loop = loop
        self.kubeconfig = kubeconfig

    def write_kubeconfig(
        self, path: Path | str, token: str | None = None, *, user: User | None = None
    ) -> None:
        """Write a kubeconfig with a token, or with client certificates of a user.

        Clients show both over HTTPS only.
        """
        self._loop.call(self._servers.write_kubeconfig, path, token, user=user)

    def __getitem__(self, name: str) -> EmulatedCluster:
        try:
            return self._clusters[name]
        except KeyError:
            names = ", ".join(self._clusters)
            raise KeyError(f"no cluster {name!r} in this fleet, only {names}") from None

    def __len__(self) -> int:
        return len(self._clusters)

    @property
    def names(self) -> list[str]:
        """The names of the clusters."""
        return list(self._clusters)

    @property
    def clusters(self) -> list[EmulatedCluster]:
        """The clusters."""
        return list(self._clusters.values())


@contextlib.contextmanager
def emulated_fleet(
    clusters: int | Sequence[str] = 3,
    *,
    workloads: bool = True,
    timing: Timing | None = None,
    tls: bool = False,
    seed: int | None = None,
    tokens: Mapping[str, str | User] | None = None,
    authorize: Callable[[Access], bool] | Literal["rbac"] | None = None,
    progress_interval: timedelta | None = None,
) -> Generator[EmulatedFleet]:
    """Serve emulated clusters on free loopback ports while the context lasts.

    Args:
        clusters: their names, or how many (`hub`, `eu1`, `us1`, …).
        workloads: whether Deployments become ready and Jobs complete; without it pods stay Pending.
            Namespaces end and garbage is collected in any case.
        timing: how long workloads take; by default they take no time.
        tls: serve HTTPS.
        seed: makes generated names and simulated choices repeatable.
        tokens: user names (or Users) by bearer token; None lets everybody in as admin, unless
            `authorize` is given. The fleet's own kubeconfig shows the first one.
        authorize: who may do what: a function, or "rbac" for the Roles and bindings there.
        progress_interval: see `Cluster`; 10 minutes for quiet resources like those of real servers.

    Raises:
        ValueError: a name is not a DNS label or is listed twice, or there is no cluster.
    """
    names = _names(clusters)
    more: dict[str, Any] = {} if authorize is None else {"authorize": authorize}
    more |= {"seed": seed, "tokens": tokens, "progress_interval": progress_interval}
    with scratch_folder("emulation") as folder, _running(LoopThread("emulated-fleet")) as loop:
        emulated = [loop.call(Cluster, name, **more) for name in names]
        serving = _serving(emulated, tls=tls, workloads=workloads, timing=timing, seed=seed)
        with loop.entered(serving) as (servers, simulators):
            pairs = zip(emulated, simulators, strict=True)
            emulated_clusters = [
                EmulatedCluster(cluster, servers, sim, loop) for cluster, sim in pairs
            ]
            fleet = EmulatedFleet(emulated_clusters, servers, loop, folder / "kubeconfig")
            fleet.write_kubeconfig(fleet.kubeconfig, next(iter(tokens), None) if tokens else None)
            yield fleet


def _names(clusters: int | Sequence[str]) -> list[str]:
    if isinstance(clusters, str):
        # Every bad option is a ValueError, a bad type too.
        raise ValueError(f"clusters are a number or a list of names, not {clusters!r}")  # noqa: TRY004
    names = default_names(clusters) if isinstance(clusters, int) else list(clusters)
    check_names(names)
    return names


@contextlib.contextmanager
def _running(loop: LoopThread) -> Generator[LoopThread]:
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


@contextlib.asynccontextmanager
async def _serving(
    clusters: Sequence[Cluster],
    *,
    tls: bool,
    workloads: bool,
    timing: Timing | None,
    seed: int | None,
) -> AsyncGenerator[tuple[ApiServers, Sequence[Simulator]]]:
    controllers = EVERYTHING if workloads else HOUSEKEEPING
    async with (
        serve(clusters, tls=tls) as servers,
        simulate(clusters, timing=timing, seed=seed, controllers=controllers) as simulators,
    ):
        yield servers, simulators
