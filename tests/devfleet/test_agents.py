"""Clusters of a dev fleet that the hub cannot reach, with an agent and a watcher in each."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus_devfleet.__main__ import read_plan
from fleetbus_devfleet.commands import lifecycle
from fleetbus_devfleet.commands.app import dev
from fleetbus_devfleet.stack.plan import (
    ClusterPlan,
    Layout,
    PlanError,
    StackPlan,
    agent_of,
    apiserver_command,
    fleet_of,
    services,
    watcher_of,
)
from fleetbus_devfleet.stack.stack import Stack
from fleetbus_devfleet.stack.state import StackState, read_state, write_state
from fleetbus_emulator.__main__ import read_options
from support.eventually import eventually
from support.processes.running import running_children

if TYPE_CHECKING:
    from pathlib import Path

    from fleetbus_devfleet.stack.plan import Part

_MCR = "fleetbus.dev/v1alpha1/multiclusterresources"
_CLUSTERS = "fleetbus.dev/v1alpha1/clusters"
_MAPS = "v1/configmaps"
_SECRETS = "v1/secrets"


def _plan(folder: Path, *, agents: int, pool: bool = False) -> StackPlan:
    clusters = fleet_of(3, agents=agents)
    return StackPlan(layout=Layout(root=folder), clusters=clusters, pool=pool, api=False)


def _parts(plan: StackPlan) -> dict[str, Part]:
    parts = services(plan, nats_url="nats://n", redis_url="redis://r", api_port=1)
    return {part.name: part for part in parts}


def test_the_last_members_are_behind_agents_and_the_hub_never_is(tmp_path: Path):
    assert [cluster.behind_agent for cluster in fleet_of(4, agents=2)] == [False, False, True, True]
    with pytest.raises(PlanError, match="of 3 clusters, 2 can be behind agents, not 3"):
        fleet_of(3, agents=3)
    hub = ClusterPlan(name="hub", behind_agent=True)
    with pytest.raises(PlanError, match="hub is the hub, which is not behind an agent"):
        StackPlan(layout=Layout(root=tmp_path), clusters=(hub,))
    result = CliRunner().invoke(dev, ["up", "--agents", "3", "--dir", str(tmp_path)])
    assert (result.exit_code, "2 can be behind agents" in result.output) == (2, True)


def test_what_runs_in_a_member_knows_neither_the_hub_nor_its_store(tmp_path: Path):
    plan = read_plan(["--clusters", "3", "--agents", "1", "--dir", str(tmp_path)])
    parts = _parts(plan)
    for name in (agent_of("us1"), watcher_of("us1")):
        assert not [key for key in parts[name].env if "HUB" in key or "REDIS" in key], name
    assert agent_of("eu1") not in parts
    for name in ("reconciler", "distributor"):
        assert parts[name].env["FLEETBUS_HUB_KUBECONFIG"] == str(plan.layout.hub_kubeconfig)
    _, _, _, *arguments = apiserver_command(plan)
    assert read_options(arguments).closed == ["us1"]


def test_a_pool_leaves_clusters_behind_agents_to_watchers_of_their_own(tmp_path: Path):
    names = [name for name in _parts(_plan(tmp_path, agents=1, pool=True)) if "watcher" in name]
    assert names == ["watcher-pool", watcher_of("us1")]


def test_a_fleet_with_other_agents_is_not_taken_for_the_wanted_one(tmp_path: Path):
    path = tmp_path / "stack.json"
    write_state(path, StackState(phase="running", pid=1, behind_agents=("us1",)))
    state = read_state(path)
    assert state is not None
    assert lifecycle.difference(state, None, agents=1, record=False) == ""
    assert lifecycle.difference(state, None, record=False) == ""
    other = lifecycle.difference(state, None, agents=2, record=False)
    assert other == "with --agents 1 and not 2"


def test_a_capture_has_its_own_clusters_none_behind_agents(tmp_path: Path):
    capture = tmp_path / "x.fleetbus"
    words = ["up", "--from", str(capture), "--agents", "1", "--dir", str(tmp_path)]
    result = CliRunner().invoke(dev, words)
    assert (result.exit_code, "--from has its own clusters" in result.output) == (2, True)


@pytest.mark.full  # CI runs `make demo`, which has it, too
@pytest.mark.timeout(120)  # it starts ten processes beside other tests
async def test_a_cluster_behind_an_agent_is_written_to_through_it_alone(tmp_path: Path):
    before = set(running_children())
    async with Stack(_plan(tmp_path, agents=1)) as stack:
        assert {part.state for part in await stack.status()} == {"ready"}
        hub_only = yaml.safe_load(stack.plan.layout.hub_kubeconfig.read_text())
        assert [context["name"] for context in hub_only["contexts"]] == ["hub"]
        async with (
            KubeClient(read_kube_config(stack.kubeconfig, "hub")) as hub,
            KubeClient(read_kube_config(stack.kubeconfig, "us1")) as us1,
        ):
            names = [obj["metadata"]["name"] for obj in await hub.list(_SECRETS)]
            assert sorted(names) == ["eu1-kubeconfig", "hub-kubeconfig"]
            cluster = await hub.get(_CLUSTERS, "", "us1")
            assert cluster is not None
            assert cluster["spec"]["access"] == "Agent"
            assert "kubeconfigSecretRef" not in cluster["spec"]

            await hub.create(_MCR, _everywhere("a"))
            await eventually(lambda: _has(us1, "a"), within=timedelta(seconds=20))
            os.kill(_pid(stack, agent_of("us1")), signal.SIGKILL)
            await hub.create(_MCR, _everywhere("b"))
            await eventually(lambda: _state(hub, "b"), within=timedelta(seconds=20))
            assert await _state(hub, "b") == {"eu1": "Applied", "us1": "Unreachable"}
            assert not await _has(us1, "b")
            await stack.restart(agent_of("us1"))
            await eventually(lambda: _has(us1, "b"), within=timedelta(seconds=20))
    assert set(running_children()) == before


def _everywhere(name: str) -> dict[str, object]:
    template = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "default", "name": name},
    }
    selector = {"matchLabels": {"role": "member"}}
    return {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "MultiClusterResource",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"placement": {"clusterSelector": selector}, "template": template},
    }


async def _has(client: KubeClient, name: str) -> bool:
    return await client.get(_MAPS, "default", name) is not None


async def _state(hub: KubeClient, name: str) -> dict[str, str]:
    """The states of both members, once there are any."""
    resource: dict[str, Any] = await hub.get(_MCR, "default", name) or {}
    entries: list[dict[str, Any]] = resource.get("status", {}).get("clusters", [])
    states: dict[str, str] = {entry["name"]: entry["state"] for entry in entries}
    return states if len(states) == 2 and "Pending" not in states.values() else {}


def _pid(stack: Stack, name: str) -> int:
    return next(part.pid for part in stack.state().parts if part.name == name)
