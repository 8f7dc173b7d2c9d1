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
_BUILTIN: Final = frozenset(f"{one.group or CORE}/{one.plural}" for one in BUILTIN_TYPES)
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

    def note(self, found: CapturedObject) -> None:
        """Note an object."""
        self.uids.add(found.uid)
        if found.type.key == NAMESPACES:
            self.present.add(found.name)
        elif found.type.key == DEFINITIONS:
            plural, _, group = found.name.partition(".")
            self.defined.add(f"{group}/{plural}")
        if found.namespace:
            self.used.add(found.namespace)


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
        self._contents = {one.name: Contents() for one in capture.header.clusters}
        for found in capture.objects():
            contents = self._contents.get(found.cluster)
            if contents is None:
                raise CaptureError(
                    f"{capture.path}: lacks the cluster {found.cluster!r} of an object"
                )
            contents.note(found)
        self.without_body: Counter[str] = Counter()
        self.owners_dropped = 0

    def lines(self, cluster: str, objects: Iterable[CapturedObject]) -> Iterator[bytes]:
        """Yield the lines of consecutive objects of a cluster."""
        for found in objects:
            if found.type.key == CLUSTERS:
                continue  # the emulated fleet registers clusters of its own, with these labels
            body = found.body
            if body is None:
                self.without_body[str(found.type)] += 1
            else:
                if self._suspended and found.type.key == TEMPLATES:
                    body = _suspended(body)
                yield _line(found.type, self._with_known_owners(cluster, body))

    def missing(self, cluster: str) -> Iterator[bytes]:
        """Yield the lines of what has to be made up, to be loaded first."""
        contents = self._contents[cluster]
        header = self._capture.header.cluster(cluster)
        for found in header.resources if header is not None else ():
            key = found.resource.key
            if key not in _BUILTIN and key not in contents.defined and _is_custom(found):
                definitions = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
                yield _line(definitions, orjson.dumps(_definition(found)))
        for name in sorted(contents.used - contents.present):
            namespace = {"metadata": {"name": name}, "status": {"phase": "Active"}}
            yield _line(Resource(CORE, "v1", "namespaces"), orjson.dumps(namespace))

    def _with_known_owners(self, cluster: str, body: bytes) -> bytes:
        if _OWNERS not in body:
            return body
        tree = _tree(body)
        meta = mapping(tree, "metadata")
        found: object = meta.get("ownerReferences")
        owners = cast("list[object]", found) if isinstance(found, list) else []
        known = [one for one in owners if mapping(one).get("uid") in self._contents[cluster].uids]
        if len(known) == len(owners):
            return body
        self.owners_dropped += 1
        meta["ownerReferences"] = known
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


def _is_custom(found: CapturedResource) -> bool:
    return bool("." in found.group and found.kind)


def _definition(found: CapturedResource) -> JsonObject:
    """A definition that accepts everything, established."""
    names = {"plural": found.plural, "singular": found.kind.lower(), "kind": found.kind}
    names["listKind"] = f"{found.kind}List"
    version: JsonObject = {
        "name": found.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _ANYTHING},
        "subresources": {"status": {}},
    }
    conditions = [{"type": kind, "status": "True"} for kind in ("NamesAccepted", "Established")]
    return {
        "metadata": {"name": f"{found.plural}.{found.group}", "generation": 1},
        "spec": {
            "group": found.group,
            "scope": "Namespaced" if found.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
        "status": {
            "conditions": conditions,
            "acceptedNames": names,
            "storedVersions": [found.version],
        },
    }
