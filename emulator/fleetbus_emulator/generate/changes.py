"""Single changes of objects, as data: what is written, and how."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import orjson

from fleetbus_emulator.generate.objects.config import Config
from fleetbus_emulator.generate.objects.databases import DATABASES
from fleetbus_emulator.generate.objects.managed_fields import ManagedFields
from fleetbus_emulator.generate.objects.naming import Naming
from fleetbus_emulator.generate.objects.pods import template
from fleetbus_emulator.generate.objects.words import TEAMS
from fleetbus_emulator.generate.objects.workloads import PODS, Place, standard_labels

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fleetbus_emulator.apiserver import Cluster

JsonObject = dict[str, Any]
CONFIG_MAPS = "v1/configmaps"
SECRETS = "v1/secrets"
DEPLOYMENTS = "apps/v1/deployments"
LEASES = "coordination.k8s.io/v1/leases"
# How often each type is chosen; pods' statuses and heartbeats are what changes in real clusters.
UPDATED = {PODS: 60, LEASES: 12, DEPLOYMENTS: 10, CONFIG_MAPS: 8, DATABASES: 8, SECRETS: 2}
CREATED = {PODS: 50, CONFIG_MAPS: 30, SECRETS: 10, DATABASES: 10}
DELETED = CREATED
TYPES = tuple(UPDATED)
MERGE = "application/merge-patch+json"
SYSTEM_FIELDS = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")


class Verb(StrEnum):
    """The verbs of generated writes."""

    UPDATE = "update"
    CREATE = "create"
    DELETE = "delete"


class HttpRequest(NamedTuple):
    """A write as a request."""

    method: str
    path: str
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """One write.

    Attributes:
        gvr: The type, like `apps/v1/deployments`.
        body: The object for a create, a merge patch for an update, nothing for a delete.
        manager: Who writes.
    """

    verb: Verb
    gvr: str
    namespace: str
    name: str
    body: JsonObject | None = None
    subresource: str = ""
    manager: str = "churn"

    def perform(self, cluster: Cluster) -> None:
        """Make it within the process.

        Raises:
            ApiError: It was refused.
        """
        if self.verb is Verb.CREATE:
            cluster.create(self.gvr, self.body or {}, self.namespace, manager=self.manager)
        elif self.verb is Verb.DELETE:
            cluster.delete(self.gvr, self.namespace, self.name, grace=0)
        else:
            cluster.patch(
                self.gvr,
                self.namespace,
                self.name,
                self.body or {},
                subresource=self.subresource,
                manager=self.manager,
            )

    def request(self) -> HttpRequest:
        """The request by which a client makes it."""
        *group, version, plural = self.gvr.split("/")
        root = f"/apis/{group[0]}/{version}" if group else f"/api/{version}"
        collection = f"{root}/namespaces/{self.namespace}/{plural}"
        manager = quote(self.manager)
        if self.verb is Verb.CREATE:
            path = f"{collection}?fieldManager={manager}"
            return HttpRequest("POST", path, "application/json", orjson.dumps(self.body))
        path = f"{collection}/{quote(self.name)}"
        if self.verb is Verb.DELETE:
            return HttpRequest("DELETE", f"{path}?gracePeriodSeconds=0", "", b"")
        if self.subresource:
            path = f"{path}/{self.subresource}"
        query = f"fieldManager={manager}"
        return HttpRequest("PATCH", f"{path}?{query}", MERGE, orjson.dumps(self.body))


def recreated(obj: JsonObject) -> JsonObject:
    """A deleted object as it is created again: another one under the same name."""
    fields = {name: value for name, value in obj.items() if name != "status"}
    meta = {name: value for name, value in obj["metadata"].items() if name not in SYSTEM_FIELDS}
    return {**fields, "metadata": meta}


class Changes:
    """Makes up changes and new objects.

    Args:
        random: The seeded source.
        canary: A string in every new Secret.
    """

    def __init__(self, random: Random, canary: str = "") -> None:
        self._random = random
        self._naming = Naming(random, (), datetime.now(UTC))
        self._config = Config(self._naming, ManagedFields(), canary)
        self._patches: dict[str, Callable[[JsonObject], JsonObject]] = {
            PODS: self._restarted,
            LEASES: self._renewed,
            DEPLOYMENTS: self._explained,
            CONFIG_MAPS: self._adjusted,
            DATABASES: self._resized,
            SECRETS: self._rotated,
        }

    # updates ------------------------------------------------------------------------------------

    def update(self, gvr: str, obj: JsonObject) -> Write:
        """An update of an object."""
        patch, meta = self._patches[gvr](obj), obj["metadata"]
        status = gvr == PODS
        return Write(
            Verb.UPDATE,
            gvr,
            meta["namespace"],
            meta["name"],
            patch,
            subresource="status" if status else "",
            manager="kubelet" if status or gvr == LEASES else "churn",
        )

    def _restarted(self, pod: JsonObject) -> JsonObject:
        """Another restart of a container; of a pod without any, another probe."""
        status: JsonObject = pod.get("status") or {}
        containers: list[JsonObject] = status.get("containerStatuses") or []
        if not containers:
            return {"status": {"message": f"probe {self._random.randrange(10**6)}"}}
        first = containers[0]
        restarts = int(first.get("restartCount") or 0) + 1
        state = {"running": {"startedAt": _now().partition(".")[0] + "Z"}}
        restarted = {**first, "restartCount": restarts, "state": state}
        return {"status": {"containerStatuses": [restarted, *containers[1:]]}}

    def _renewed(self, _lease: JsonObject) -> JsonObject:
        return {"spec": {"renewTime": _now()}}

    def _explained(self, _deployment: JsonObject) -> JsonObject:
        cause = f"change {self._random.randrange(10**6)}"
        return {"metadata": {"annotations": {"kubernetes.io/change-cause": cause}}}

    def _adjusted(self, _config: JsonObject) -> JsonObject:
        return {"data": {"REVISION": str(self._random.randrange(10**9))}}

    def _resized(self, _database: JsonObject) -> JsonObject:
        parameters = {"work_mem": f"{self._random.randrange(1, 10**6)}kB"}
        return {"spec": {"storageGB": self._random.randrange(10, 2_000), "parameters": parameters}}

    def _rotated(self, _secret: JsonObject) -> JsonObject:
        return {"data": {"password": base64.b64encode(self._random.randbytes(24)).decode()}}

    # new objects --------------------------------------------------------------------------------

    def new(self, gvr: str, namespace: str) -> JsonObject:
        """A new object of one of the types that can be created."""
        naming, app = self._naming, self._naming.application()
        team = self._random.choice(TEAMS)
        name = f"{app}-{naming.suffix()}"
        place = Place(app, namespace, labels=standard_labels(app, "1.0", team))
        if gvr == CONFIG_MAPS:
            return recreated(self._config.config_map(place, name)[1])
        if gvr == SECRETS:
            return recreated(self._config.secret(place, name)[1])
        meta: JsonObject = {"name": name, "namespace": namespace, "labels": place.labels}
        if gvr == DATABASES:
            spec: JsonObject = {"engine": "postgres", "version": "16.3", "replicas": 1}
            typed = {
                "apiVersion": "platform.example.com/v1",
                "kind": "Database",
            }  # required in applied CRs
            return {**typed, "metadata": meta, "spec": spec}
        pod_template = template(naming, app, "default", place.labels)
        return {"metadata": meta | pod_template["metadata"], "spec": pod_template["spec"]}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
