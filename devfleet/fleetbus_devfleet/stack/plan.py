"""The plan of a local stack: its clusters, its folder, and the services as commands.

Pure data: nothing here starts anything.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbus_emulator.cluster_names import HUB, REGIONS, check_names, default_names
from fleetbus_emulator.files import ground_truth_folder, kubeconfig_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

APISERVER = "apiserver"
"""The part that emulates the clusters."""


class PlanError(Exception):
    """The wanted stack is impossible; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """One emulated cluster.

    Attributes:
        name: its name.
        labels: what placement selects on.
        behind_agent: the hub calls it through an agent, and has no access data of it.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    behind_agent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files of a stack, all below one folder."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig with one context per cluster."""
        return kubeconfig_file(self.root)

    @property
    def hub_kubeconfig(self) -> Path:
        """The kubeconfig of the hub's services, in which the hub is the only cluster."""
        return self.root / "hub.kubeconfig"

    @property
    def state(self) -> Path:
        """The state of the stack, for other processes to read."""
        return self.root / "stack.json"

    @property
    def lock(self) -> Path:
        """Locked for as long as the stack has an owner."""
        return self.root / "lock"

    @property
    def nats(self) -> Path:
        """The streams of NATS."""
        return self.root / "nats"

    @property
    def valkey(self) -> Path:
        """The folder of Valkey."""
        return self.root / "valkey"

    @property
    def opened(self) -> Path:
        """The outcome of loading a capture, where the stack was made from one."""
        return self.root / "opened.json"

    @property
    def run(self) -> Path:
        """The files in which services write their ports."""
        return self.root / "run"

    @property
    def truth(self) -> Path:
        """The ground truth of each cluster, where the plan records it."""
        return ground_truth_folder(self.root)

    def log(self, name: str) -> Path:
        """The log of one part."""
        return self.root / "logs" / f"{name}.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process of the stack.

    Attributes:
        name: what people call it, like `watcher-eu1`.
        command: the program and its arguments.
        env: the environment it gets beside ours.
        health_port_file: where it writes the port of /readyz.
        port_files: every file that it writes ports to; stale ones are removed before a start.
        needs_clusters: whether it can start only when the clusters are there.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    health_port_file: Path
    port_files: tuple[Path, ...]
    needs_clusters: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """The wanted stack.

    Args:
        layout: its folder.
        clusters: the emulated clusters; the first is the hub.
        modules: Python files with controllers, for the reconciler.
        record: write the ground truth of each cluster to a file.
        progress_interval: how often the clusters' stores report progress, see `Cluster`.
        instant: Pods start and stop at once, instead of as in a small cluster.
        capture: a file whose objects are loaded into the clusters before anything watches them.
        suspended: its MultiClusterResources are suspended.
        pool: one watcher for all clusters, instead of one for each.
        api: run the query API, too.
        secrets: watch Secrets, too, without their values.
        settings: more environment variables of every service.

    Raises:
        PlanError: a name is not a DNS label or is listed twice, the hub is behind an agent, or a
            module is missing.
    """

    layout: Layout
    clusters: tuple[ClusterPlan, ...]
    modules: tuple[Path, ...] = ()
    record: bool = False
    progress_interval: timedelta | None = None
    instant: bool = False
    capture: Path | None = None
    suspended: bool = False
    pool: bool = False
    api: bool = True
    secrets: bool = False
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not self.clusters:
            raise PlanError("a fleet needs at least one cluster, its hub")
        try:
            check_names(self.names)
        except ValueError as error:
            raise PlanError(str(error)) from error
        if self.clusters[0].behind_agent:
            raise PlanError(f"{self.hub} is the hub, which is not behind an agent")
        for module in self.modules:
            if not module.is_file():
                raise PlanError(f"module {module}: there is no such file")

    @property
    def hub(self) -> str:
        """The name of the hub."""
        return self.clusters[0].name

    @property
    def names(self) -> list[str]:
        """The names of all clusters, the hub first."""
        return [cluster.name for cluster in self.clusters]

    @property
    def behind_agents(self) -> list[str]:
        """The names of the clusters that the hub calls through agents."""
        return [cluster.name for cluster in self.clusters if cluster.behind_agent]


def fleet_of(count: int, *, agents: int = 0) -> tuple[ClusterPlan, ...]:
    """A hub and `count - 1` members with regions: hub, eu1, us1, ap1, eu2, ...

    Args:
        count: how many clusters.
        agents: how many members, the last ones, are behind agents.

    Raises:
        PlanError: the count is below 1, or there are fewer members than agents.
    """
    try:
        names = default_names(count)
    except ValueError as error:
        raise PlanError(str(error)) from error
    if not 0 <= agents < count:
        raise PlanError(f"of {count} clusters, {count - 1} can be behind agents, not {agents}")
    return tuple(
        ClusterPlan(name=name, labels=_labels(name), behind_agent=number >= count - agents)
        for number, name in enumerate(names)
    )


def _labels(name: str) -> dict[str, str]:
    if name == HUB:
        return {"region": REGIONS[0], "role": "hub"}
    return {"region": name.rstrip("0123456789"), "role": "member"}


def apiserver_command(plan: StackPlan) -> tuple[str, ...]:
    """The command that emulates the clusters."""
    return (
        sys.executable,
        "-m",
        "fleetbus_emulator",
        "--clusters",
        ",".join(plan.names),
        "--dir",
        str(plan.layout.root),
        *(["--record"] if plan.record else []),
        *progress_option(plan.progress_interval),
        *(["--instant"] if plan.instant else []),
        *(["--closed", ",".join(plan.behind_agents)] if plan.behind_agents else []),
    )


def progress_option(interval: timedelta | None) -> tuple[str, ...]:
    """The command line option of the progress interval."""
    return () if interval is None else ("--progress-interval", str(interval.total_seconds()))


def services(plan: StackPlan, *, nats_url: str, redis_url: str, api_port: int) -> list[Part]:
    """The services of the stack: a watcher per cluster, agents, and one of each other."""
    in_members = {
        "FLEETBUS_NATS_URL": nats_url,
        "FLEETBUS_HEALTH_PORT": "0",
        # NATS is next door: what it has not acknowledged by then, it never will.
        "FLEETBUS_WATCHER_STOP_PATIENCE": "1s",
        "FLEETBUS_WATCHER_SECRETS": str(plan.secrets).lower(),
        **plan.settings,
    }
    shared = {
        **in_members,
        **fleet_settings(
            nats_url=nats_url,
            redis_url=redis_url,
            kubeconfig=str(plan.layout.hub_kubeconfig),
            hub=plan.hub,
        ),
        "FLEETBUS_RECONCILER_MODULES": json.dumps([str(path) for path in plan.modules]),
        "FLEETBUS_QUERY_API_PORT": str(api_port),
        "FLEETBUS_QUERY_API_AUTHENTICATION": "none",  # it listens on loopback
        # Everybody here is one user, that of 127.0.0.1, and the demo's stopwatch asks all the time.
        "FLEETBUS_QUERY_API_USER_REQUESTS_PER_SECOND": "1000",
        "FLEETBUS_QUERY_API_USER_REQUEST_BURST": "1000",
        "FLEETBUS_QUERY_API_PORT_FILE": str(api_port_file(plan.layout)),
    }
    return [
        *_watchers(plan, shared, in_members),
        *(_agent(plan, name, in_members) for name in plan.behind_agents),
        _part(plan.layout, "reconciler", ["fleetbus-reconciler"], shared),
        _part(plan.layout, "distributor", ["fleetbus-distributor"], shared),
        *([_query_api(plan.layout, shared)] if plan.api else []),
    ]


def fleet_settings(*, nats_url: str, redis_url: str, kubeconfig: str, hub: str) -> dict[str, str]:
    """The variables by which a process of fleetbus finds the stack and its clusters."""
    return {
        "FLEETBUS_NATS_URL": nats_url,
        "FLEETBUS_REDIS_URL": redis_url,
        "FLEETBUS_HUB_KUBECONFIG": kubeconfig,
        "FLEETBUS_HUB_CONTEXT": hub,
        "FLEETBUS_HUB_CLUSTER": hub,
        "FLEETBUS_PROVIDERS": json.dumps([{"type": "cluster"}]),
        # The emulated clusters are on this machine.
        "FLEETBUS_ALLOW_LOOPBACK": "1",
    }


def api_port_file(layout: Layout) -> Path:
    """The file in which the query API writes its port."""
    return layout.run / "query-api.port"


def watcher_of(cluster: str) -> str:
    """The name of the part that watches a cluster."""
    return f"watcher-{cluster}"


def agent_of(cluster: str) -> str:
    """The name of the part through which the hub calls a cluster."""
    return f"agent-{cluster}"


def clean_environment() -> dict[str, str]:
    """Our environment without settings of fleetbus: a stray one must not reach the stack."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FLEETBUS_")}


def _watchers(
    plan: StackPlan, shared: Mapping[str, str], in_members: Mapping[str, str]
) -> list[Part]:
    if plan.pool:
        pool = _part(plan.layout, "watcher-pool", ["fleetbus-watcher", "--pool"], shared)
        # It reaches as much as the hub does.
        return [pool, *(_watcher(plan, name, in_members) for name in plan.behind_agents)]
    return [_watcher(plan, name, in_members) for name in plan.names]


def _watcher(plan: StackPlan, cluster: str, settings: Mapping[str, str]) -> Part:
    kubeconfig = str(plan.layout.kubeconfig)
    command = ["fleetbus-watcher", "--cluster", cluster]
    command += ["--kubeconfig", kubeconfig, "--context", cluster]
    # What is watched is the watcher's own default, everything: a definition that somebody applies
    # is one that he wants to try.
    return _part(plan.layout, watcher_of(cluster), command, settings)


def _agent(plan: StackPlan, cluster: str, settings: Mapping[str, str]) -> Part:
    own = {
        "FLEETBUS_AGENT_CLUSTER": cluster,
        "FLEETBUS_AGENT_KUBECONFIG": str(plan.layout.kubeconfig),
        "FLEETBUS_AGENT_CONTEXT": cluster,
        "FLEETBUS_AGENT_STOP_PATIENCE": "1s",
    }
    return _part(plan.layout, agent_of(cluster), ["fleetbus-agent"], {**settings, **own})


def _query_api(layout: Layout, shared: Mapping[str, str]) -> Part:
    part = _part(layout, "query-api", ["fleetbus-query-api"], shared)
    # It reads the snapshot only, so it may start while the clusters do.
    return replace(part, port_files=(*part.port_files, api_port_file(layout)), needs_clusters=False)


def _part(layout: Layout, name: str, command: Sequence[str], env: Mapping[str, str]) -> Part:
    health = layout.run / f"{name}.health"
    program = Path(sysconfig.get_path("scripts"), command[0])
    return Part(
        name=name,
        command=(str(program), *command[1:]),
        env={**env, "FLEETBUS_HEALTH_PORT_FILE": str(health)},
        health_port_file=health,
        port_files=(health,),
    )
