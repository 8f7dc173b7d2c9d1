"""The controllers that a simulated cluster may have, and the usual choices of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fleetbus_emulator.controllers.adoption import Claims
from fleetbus_emulator.controllers.garbage import GarbageCollector
from fleetbus_emulator.controllers.namespace import NamespaceController
from fleetbus_emulator.controllers.namespace_defaults import RootCertificates, ServiceAccounts
from fleetbus_emulator.controllers.pods.behavior import Images
from fleetbus_emulator.controllers.pods.behavior_events import BehaviorEvents
from fleetbus_emulator.controllers.pods.heartbeat import Heartbeats
from fleetbus_emulator.controllers.pods.kubelet import Kubelet
from fleetbus_emulator.controllers.pods.node_lifecycle import NodeLifecycle
from fleetbus_emulator.controllers.pods.scheduler import Scheduler
from fleetbus_emulator.controllers.services.endpoints import EndpointsController
from fleetbus_emulator.controllers.services.slices import EndpointSliceController
from fleetbus_emulator.controllers.workloads.cronjob import CronJobController
from fleetbus_emulator.controllers.workloads.daemonset import DaemonSetController
from fleetbus_emulator.controllers.workloads.deployment import DeploymentController
from fleetbus_emulator.controllers.workloads.disruption import DisruptionController
from fleetbus_emulator.controllers.workloads.job import JobController, JobOrphans
from fleetbus_emulator.controllers.workloads.replicaset import ReplicaSetController
from fleetbus_emulator.controllers.workloads.statefulset import StatefulSetController

if TYPE_CHECKING:
    from fleetbus_emulator.controllers.runtime.world import Controller, World

WORKLOADS = frozenset({"deployment", "replicaset", "statefulset", "daemonset", "job", "cronjob"})
HOUSEKEEPING = frozenset({"namespace", "garbage", "serviceaccount", "root-ca"})
"""Namespaces and garbage only: Pods stay Pending, and a test writes every status itself."""

CONTROL_PLANE = WORKLOADS | HOUSEKEEPING | {"endpoint", "endpointslice", "disruption", "node"}
"""A control plane that has no nodes: workloads have pods, which stay Pending."""

EVERYTHING = CONTROL_PLANE | {"scheduler", "kubelet"}
"""The control plane, and nodes that run the pods."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of single controllers.

    Attributes:
        images: Settings by patterns of images, for the kubelet.
        schedules: Whether CronJobs are started by the clock.
    """

    images: Mapping[str, Mapping[str, str]]
    schedules: bool = False


def build(world: World, names: Collection[str], setup: Setup) -> list[Controller]:
    """The controllers of these names, in the order in which they look at a change.

    Raises:
        ValueError: There is no such controller, or a setting for an image makes no sense.
    """
    unknown = set(names) - EVERYTHING
    if unknown:
        listed = ", ".join(sorted(EVERYTHING))
        raise ValueError(f"no controller is called {min(unknown)!r}; there are {listed}")
    images = Images(setup.images)
    kubelet = replace(world, manager="kubelet")
    every: list[Controller] = [
        NamespaceController(world),
        ServiceAccounts(world),
        RootCertificates(world),
        DeploymentController(world),
        ReplicaSetController(world),
        StatefulSetController(world),
        DaemonSetController(world),
        JobController(world),
        CronJobController(world, schedules=setup.schedules),
        NodeLifecycle(world),
        Scheduler(replace(world, manager="kube-scheduler")),
        Kubelet(kubelet, images),
        GarbageCollector(world),
        EndpointsController(world),
        EndpointSliceController(world),
        DisruptionController(world),
    ]
    chosen = [controller for controller in every if controller.name in names]
    # Those without a name of their own are parts of others.
    inner: list[Controller] = [Claims(world, WORKLOADS & set(names))]
    if "job" in names:
        inner.append(JobOrphans(world))
    if "kubelet" in names:
        inner += [Heartbeats(kubelet), BehaviorEvents(kubelet, images)]
    return [*inner, *chosen]
