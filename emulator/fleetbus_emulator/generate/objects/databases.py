"""Custom resources: databases.platform.example.com, with status and scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.definitions.served_type import resource_type
from fleetbus_emulator.generate.objects.workloads import Made, standard_labels

if TYPE_CHECKING:
    from fleetbus_emulator.generate.objects.managed_fields import ManagedFields
    from fleetbus_emulator.generate.objects.naming import Naming

JsonObject = dict[str, Any]
_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_CONDITION = {
    "type": "object",
    "required": ["type", "status"],
    "properties": {
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "message": _TEXT,
        "reason": _TEXT,
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "type": _TEXT,
    },
}
_SCHEMA: JsonObject = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["engine", "version"],
            "properties": {
                "backup": {
                    "type": "object",
                    "properties": {"retentionDays": _NUMBER, "schedule": _TEXT},
                },
                "engine": {"type": "string", "enum": ["postgres", "mysql", "mongodb"]},
                "parameters": {"type": "object", "additionalProperties": _TEXT},
                "replicas": {"type": "integer", "default": 1, "minimum": 0},
                "storageGB": {"type": "integer", "default": 10},
                "users": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": _TEXT, "role": _TEXT},
                    },
                },
                "version": _TEXT,
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "conditions": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"],
                    "items": _CONDITION,
                },
                "endpoint": _TEXT,
                "observedGeneration": _NUMBER,
                "readyReplicas": _NUMBER,
            },
        },
    },
}
_SCALE = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.readyReplicas"}
DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
DATABASES = "platform.example.com/v1/databases"


def definition(naming: Naming, managed_fields: ManagedFields) -> Made:
    """The CustomResourceDefinition of databases, as an established one is stored."""
    names = {"kind": "Database", "plural": "databases", "shortNames": ["db"]}
    names |= {"singular": "database", "listKind": "DatabaseList"}
    version: JsonObject = {
        "additionalPrinterColumns": [
            {"jsonPath": ".spec.engine", "name": "Engine", "type": "string"},
            {"jsonPath": ".status.readyReplicas", "name": "Ready", "type": "integer"},
        ],
        "name": "v1",
        "schema": {"openAPIV3Schema": _SCHEMA},
        "served": True,
        "storage": True,
        "subresources": {"scale": _SCALE, "status": {}},
    }
    meta = naming.metadata("databases.platform.example.com", "", naming.age(), generation=1)
    crd: JsonObject = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": meta,
        "spec": {
            "conversion": {"strategy": "None"},
            "group": "platform.example.com",
            "names": names,
            "scope": "Namespaced",
            "versions": [version],
        },
        "status": _status(names, meta["creationTimestamp"]),
    }
    managed_fields.keep(crd, "helm", controller="kube-apiserver")
    return DEFINITIONS, crd


def _status(names: JsonObject, created: str) -> JsonObject:
    accepted = "the initial names have been accepted"
    return {
        "acceptedNames": names,
        "conditions": [
            _accepted("NamesAccepted", "NoConflicts", "no conflicts found", created),
            _accepted("Established", "InitialNamesAccepted", accepted, created),
        ],
        "storedVersions": ["v1"],
    }


def _accepted(kind: str, reason: str, message: str, time: str) -> JsonObject:
    return {
        "lastTransitionTime": time,
        "message": message,
        "reason": reason,
        "status": "True",
        "type": kind,
    }


class Databases:
    """Makes custom resources.

    Args:
        naming: Tells objects apart.
        managed_fields: Keeps their managedFields.
        crd: Their definition.
    """

    def __init__(self, naming: Naming, managed_fields: ManagedFields, crd: JsonObject) -> None:
        self._naming = naming
        self._managed_fields = managed_fields
        self._rule = resource_type(crd).versions["v1"].merge_rule

    def database(self, namespace_name: str) -> Made:
        """One database that is ready."""
        naming = self._naming
        random, name, age = naming.random, naming.store(), naming.age()
        labels = standard_labels(name, "1.4.0", "data")
        meta = naming.metadata(name, namespace_name, age, labels, generation=1)
        replicas = random.choice((1, 2, 3))
        users = [{"name": f"user-{n}", "role": random.choice(("ro", "rw"))} for n in range(3)]
        obj: JsonObject = {
            "apiVersion": "platform.example.com/v1",
            "kind": "Database",
            "metadata": meta,
            "spec": {
                "backup": {"retentionDays": 14, "schedule": "0 2 * * *"},
                "engine": random.choice(("postgres", "mysql", "mongodb")),
                "parameters": {"max_connections": "200", "shared_buffers": "1GB"},
                "replicas": replicas,
                "storageGB": random.choice((10, 50, 100, 500)),
                "users": users,
                "version": random.choice(("14.12", "15.7", "16.3")),
            },
            "status": {
                "conditions": [
                    _accepted("Ready", "Available", "the database answers", naming.ago(age - 90))
                ],
                "endpoint": f"{name}.{namespace_name}.svc.cluster.local:5432",
                "observedGeneration": 1,
                "readyReplicas": replicas,
            },
        }
        operator = "database-operator"
        self._managed_fields.keep(obj, "argocd-controller", controller=operator, rule=self._rule)
        return DATABASES, obj
