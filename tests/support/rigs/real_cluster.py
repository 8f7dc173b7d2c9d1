"""Rounds of the distributor on a real API server, without hub, bus and store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.binaries import ProgramsMissingError, find_programs
from e2e.planes import ADMIN_TOKEN, control_planes
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.ownership import Owner
from fleetbus_distributor.plan.intent import Owned
from fleetbus_distributor.render.spec import DriftPolicy, Policy
from fleetbus_distributor.targets.converge import converge
from fleetbus_distributor.targets.corrections import Corrections
from fleetbus_distributor.targets.limits import Limits
from fleetbus_distributor.targets.memory import TargetMemory
from fleetbus_distributor.targets.outcome import ClusterOutcome
from fleetbus_distributor.targets.target import Target

OWNER = Owner("fleetbus.dev/v1alpha1", "MultiClusterResource", "d", "x", "u1", "hub", hub="h1")


class RealCluster:
    """Rounds on one real cluster."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self._limits = Limits(qps=100, burst=200, in_flight=20)
        self.known: dict[Any, Owned] = {}
        self.is_same = False
        """The rounds apply what they applied before."""
        self.drift = DriftPolicy.CORRECT
        self.restart()

    def restart(self) -> None:
        """Forget what only the memory of a process has."""
        self._memory = TargetMemory()
        self._corrections = Corrections()

    async def round(self, *objects: dict[str, Any], prune: tuple[str, ...] = ()) -> ClusterOutcome:
        target = Target(
            name="c",
            client=self.client,
            owner=OWNER,
            manager="fleetbus-test",
            policy=Policy(delete_namespaces=True, drift=self.drift),
            corrections=self._corrections,
            memory=self._memory,
            limits=self._limits.of("c"),
            known=self.known,
            is_same=self.is_same,
            only_compare=self.is_same and self.drift is not DriftPolicy.CORRECT,
        )
        going = [obj for obj in self.known.values() if obj.kind in prune]
        result = await converge(target, objects, going, "r")
        self.known = dict(result.inventory)
        return result

    async def get(self, resource: str, namespace: str, name: str) -> dict[str, Any]:
        obj = await self.client.get(resource, namespace, name)
        assert obj is not None
        return obj


@asynccontextmanager
async def real_cluster(folder: Path) -> AsyncGenerator[RealCluster]:
    """One control plane; skips where the programs of `make e2e` are missing."""
    try:
        programs = find_programs()
    except ProgramsMissingError as e:
        pytest.skip(str(e))
    async with control_planes({"eu1": None}, folder, programs) as planes:
        config = read_kube_config(planes["eu1"].write_kubeconfig("admin", token=ADMIN_TOKEN))
        async with KubeClient(config) as client:
            yield RealCluster(client)
