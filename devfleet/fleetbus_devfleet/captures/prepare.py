"""Turns the objects of a capture into lines that an emulated cluster can take.

What a cluster needs and the capture lacks is made up: definitions of custom resources that were
captured without theirs, and namespaces. References to owners that were not captured are dropped,
because the garbage collector would delete the object for them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from fleetbus.errors import CaptureError
from fleetbus.kube.json_fields import mapping
from fleetbus_emulator.apiserver.types.builtin import BUILTIN_TYPES
from fleetbus_proto.resources import CORE, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fleetbus_cli.capture.format import CapturedObject, CapturedResource
    from fleetbus_cli.capture.reading import Capture

JsonObject = dict[str, Any]
DEFINITIONS: Final = "apiextensions.k8s.io/customresourcedefinitions"
NAMESPACES: Final = "core/namespaces"
CLUSTERS: Final = "fleetbus.dev/clusters"
TEMPLATES: Final = "fleetbus.dev/multiclusterresources"
_OWNERS: Final = b'"ownerReferences"'
_BUILTIN: Final = frozenset(
    f"{builtin.group or CORE}/{builtin.plural}" for builtin in BUILTIN_TYPES
)
_ANYTHING: Final[JsonObject] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@dataclass(slots=True)
class Contents:
    """The contents of one cluster, as far as loading depends on them.

    Attributes:
        uids: of all objects.
        present: names of namespaces that were captured.
        used: names of namespaces that objects are in.
        defined: resource keys of the definitions that were captured.
    """

    uids: set[str] = field(default_factory=set[str])
    present: set[str] = field(default_factory=set[str])
    used: set[str] = field(default_factory=set[str])
    defined: set[str] = field(default_factory=set[str])

    def note(self, obj: CapturedObject) -> None:
        """Note an object."""
        self.uids.add(obj.uid)
        if obj.type.key == NAMESPACES:
            self.present.add(obj.name)
        elif obj.type.key == DEFINITIONS:
            plural, _, group = obj.name.partition(".")
            self.defined.add(f"{group}/{plural}")
        if obj.namespace:
            self.used.add(obj.namespace)


class Preparation:
    """Prepares the objects of a capture.

    Args:
        capture: the capture.
        suspended: suspend its MultiClusterResources, so that the distributor leaves them alone.

    Attributes:
        without_body: how many objects cannot be loaded because their content is unknown.
        owners_dropped: how many objects lost a reference to an owner that was not captured.

    Raises:
        CaptureError: an object is of a cluster that the header lacks; anybody may have made the
            file.
    """

    def __init__(self, capture: Capture, *, suspended: bool = False) -> None:
        self._capture = capture
        self._suspended = suspended
        self._contents = {cluster.name: Contents() for cluster in capture.header.clusters}
        for obj in capture.objects():
            contents = self._contents.get(obj.cluster)
            if contents is None:
                raise CaptureError(
                    f"{capture.path}: lacks the cluster {obj.cluster!r} of an object"
                )
            contents.note(obj)
        self.without_body: Counter[str] = Counter()
        self.owners_dropped = 0

    def lines(self, cluster: str, objects: Iterable[CapturedObject]) -> Iterator[bytes]:
        """Yield the lines of consecutive objects of a cluster."""
        for obj in objects:
            if obj.type.key == CLUSTERS:
                continue  # the emulated fleet registers clusters of its own, with these labels
            body = obj.body
            if body is None:
                self.without_body[str(obj.type)] += 1
            else:
                if self._suspended and obj.type.key == TEMPLATES:
                    body = _suspended(body)
                yield _line(obj.type, self._with_known_owners(cluster, body))

    def missing(self, cluster: str) -> Iterator[bytes]:
        """Yield the lines of what has to be made up, to be loaded first."""
        contents = self._contents[cluster]
        header = self._capture.header.cluster(cluster)
        for resource in header.resources if header is not None else ():
            key = resource.resource.key
            if key not in _BUILTIN and key not in contents.defined and _is_custom(resource):
                definitions = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
                yield _line(definitions, orjson.dumps(_definition(resource)))
        for name in sorted(contents.used - contents.present):
            namespace = {"metadata": {"name": name}, "status": {"phase": "Active"}}
            yield _line(Resource(CORE, "v1", "namespaces"), orjson.dumps(namespace))

    def _with_known_owners(self, cluster: str, body: bytes) -> bytes:
        if _OWNERS not in body:
            return body
        tree = _tree(body)
        meta = mapping(tree, "metadata")
        references: object = meta.get("ownerReferences")
        owners = cast("list[object]", references) if isinstance(references, list) else []
        known_owners = [
            owner for owner in owners if mapping(owner).get("uid") in self._contents[cluster].uids
        ]
        if len(known_owners) == len(owners):
            return body
        self.owners_dropped += 1
        meta["ownerReferences"] = known_owners
        return orjson.dumps(tree)


def _suspended(body: bytes) -> bytes:
    tree = _tree(body)
    spec, policy = mapping(tree, "spec"), mapping(tree, "spec", "policy")
    return orjson.dumps({**tree, "spec": {**spec, "policy": {**policy, "suspend": True}}})


def _tree(body: bytes) -> JsonObject:
    """An object; empty if it is none, which the emulated cluster refuses."""
    try:
        return mapping(orjson.loads(body))
    except orjson.JSONDecodeError:
        return {}


def _line(resource: Resource, body: bytes) -> bytes:
    return b'{"type":%b,"object":%b}\n' % (orjson.dumps(str(resource)), body)


def _is_custom(resource: CapturedResource) -> bool:
    return bool("." in resource.group and resource.kind)


def _definition(resource: CapturedResource) -> JsonObject:
    """A definition that accepts everything, established."""
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind}
    names["listKind"] = f"{resource.kind}List"
    version: JsonObject = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _ANYTHING},
        "subresources": {"status": {}},
    }
    conditions = [{"type": kind, "status": "True"} for kind in ("NamesAccepted", "Established")]
    return {
        "metadata": {"name": f"{resource.plural}.{resource.group}", "generation": 1},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
        "status": {
            "conditions": conditions,
            "acceptedNames": names,
            "storedVersions": [resource.version],
        },
    }
