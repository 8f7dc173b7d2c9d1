"""The controllers that every simulated cluster has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fleetbus_devfleet.sim.daemonset import DaemonSetController
from fleetbus_devfleet.sim.deployment import DeploymentController
from fleetbus_devfleet.sim.garbage import GarbageCollector
from fleetbus_devfleet.sim.job import JobController
from fleetbus_devfleet.sim.kubelet import Kubelet
from fleetbus_devfleet.sim.namespace import NamespaceController
from fleetbus_devfleet.sim.replicaset import ReplicaSetController
from fleetbus_devfleet.sim.statefulset import StatefulSetController

if TYPE_CHECKING:
    from fleetbus_devfleet.sim.world import Controller, World


def all_controllers(world: World) -> list[Controller]:
    """One of each."""
    return [
        NamespaceController(world),
        DeploymentController(world),
        ReplicaSetController(world),
        StatefulSetController(world),
        DaemonSetController(world),
        JobController(world),
        Kubelet(replace(world, manager="kubelet")),
        GarbageCollector(world),
    ]
