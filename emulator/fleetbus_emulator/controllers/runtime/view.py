"""The controllers' cache of a cluster: its objects, indexed, kept up to date by its writes.

The view is never stale: the cluster notifies it before a write returns. That spares the
controllers the expectations and the back-off by which real ones live with stale caches. Objects
are shared with the API server and must never be changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.builtin import BUILTIN_TYPES
from fleetbus_emulator.controllers.pod_groups import PodGroups, PodGroupsByOwner
from fleetbus_emulator.controllers.reading import objects_at, texts_at
from fleetbus_emulator.controllers.runtime.index import Index, Ref

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver import Change, Cluster

JsonObject = dict[str, Any]
DEFINITIONS = ("apiextensions.k8s.io", "customresourcedefinitions")


def ref_of(group: str, resource: str, obj: JsonObject) -> Ref:
    """The name of an object of a type."""
    meta = obj["metadata"]
    return Ref(group, resource, meta.get("namespace") or "", meta["name"])


def uid_of(obj: JsonObject) -> str:
    """The uid."""
    uid: str = obj["metadata"]["uid"]
    return uid


def is_deleting(obj: JsonObject) -> bool:
    """Whether the object has been deleted but is still there."""
    return "deletionTimestamp" in obj["metadata"]


def owners_of(obj: JsonObject) -> list[JsonObject]:
    """The ownerReferences."""
    if not obj["metadata"].get("ownerReferences"):
        return []  # asked so often that the short way counts
    return objects_at(obj, "metadata", "ownerReferences")


def controller_uid(obj: JsonObject) -> str | None:
    """The uid of the owner that manages the object, if there is one."""
    for owner in owners_of(obj):
        if owner.get("controller"):
            return str(owner.get("uid") or "")
    return None


def _type_and_namespace(ref: Ref) -> str:
    return f"{ref.group}/{ref.resource}/{ref.namespace}"


def _free(ref: Ref, obj: JsonObject) -> list[str]:
    return [] if controller_uid(obj) else [_type_and_namespace(ref)]


def _is_pod(ref: Ref) -> bool:
    return (ref.group, ref.resource) == ("", "pods")


def _node(ref: Ref, obj: JsonObject) -> list[str]:
    return [str(mapping(obj, "spec").get("nodeName") or "")] if _is_pod(ref) else []


def _pod_ip(ref: Ref, obj: JsonObject) -> list[str]:
    return [str(mapping(obj, "status").get("podIP") or "")] if _is_pod(ref) else []


def _owners(_: Ref, obj: JsonObject) -> list[str]:
    return [str(owner.get("uid") or "") for owner in owners_of(obj)]


def _whole(ref: Ref, obj: JsonObject) -> list[str]:
    return [] if is_deleting(obj) else [ref.namespace, _type_and_namespace(ref)]


def _label_pairs(ref: Ref, obj: JsonObject) -> list[str]:
    if not _is_pod(ref):
        return []
    labels = texts_at(obj, "metadata", "labels")
    return [_label_pair(ref.namespace, *pair) for pair in labels.items()]


def _label_pair(namespace: str, name: str, value: str) -> str:
    return f"{namespace}/{name}={value}"


class View:
    """The objects of one cluster.

    Attributes:
        owned: By the uid of every owner.
        on_node: Pods by the name of their node; those without one under the empty text.
        with_ip: Pods by their address.
        in_namespace: By namespace; cluster-scoped objects under the empty text.
        whole: The same, without those that are being deleted; also by type, see `whole_of_type`.
    """

    def __init__(self) -> None:
        self._objects: dict[Ref, JsonObject] = {}
        self._by_uid: dict[str, Ref] = {}
        self.owned = Index(_owners)
        self.on_node = Index(_node)
        self.with_ip = Index(_pod_ip)
        self.in_namespace = Index(lambda ref, _: [ref.namespace])
        self.whole = Index(_whole)
        self._of_type = Index(lambda ref, _: [_type_and_namespace(ref), _whole_type(ref)])
        self._free = Index(_free)
        self._labelled = Index(_label_pairs)
        self._pods_by_owner = PodGroupsByOwner(controller_uid)
        self._by_ref = (self.in_namespace, self._of_type)
        self._by_content = (
            self.owned,
            self.on_node,
            self.with_ip,
            self.whole,
            self._free,
            self._pods_by_owner,
        )

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._objects

    def __iter__(self) -> Iterator[Ref]:
        return iter(self._objects)

    def get(self, ref: Ref) -> JsonObject | None:
        """The object, or None. Never change it."""
        return self._objects.get(ref)

    def __getitem__(self, ref: Ref) -> JsonObject:
        return self._objects[ref]

    def find_uid(self, uid: str) -> Ref | None:
        """The object that has the uid."""
        return self._by_uid.get(uid)

    def gvr(self, ref: Ref) -> str:
        """The type of an existing object, as the cluster's in-process calls name it."""
        return f"{self._objects[ref]['apiVersion']}/{ref.resource}"

    def of_type(self, group: str, resource: str, namespace: str | None = None) -> list[Ref]:
        """All objects of a type, in one namespace or in all."""
        place = "*" if namespace is None else namespace
        return self._of_type.get(f"{group}/{resource}/{place}")

    def count_of_type(self, group: str, resource: str, namespace: str) -> int:
        """The number of objects of a type in a namespace."""
        return self._of_type.count(f"{group}/{resource}/{namespace}")

    def whole_of_type(self, group: str, resource: str, namespace: str) -> Iterator[Ref]:
        """The objects of a type in a namespace that are not being deleted, one by one."""
        return self.whole.each(f"{group}/{resource}/{namespace}")

    def controlled(self, uid: str, group: str, resource: str) -> list[Ref]:
        """The objects of a type, other than pods, that the owner with the uid manages."""
        return [
            ref
            for ref in self.owned.get(uid)
            if (ref.group, ref.resource) == (group, resource)
            and controller_uid(self._objects[ref]) == uid
        ]

    def pods_of(self, uid: str) -> PodGroups:
        """The pods that the owner with the uid manages."""
        return self._pods_by_owner.of(uid)

    def pods_with(self, namespace: str, labels: Mapping[str, str]) -> list[Ref]:
        """The pods of a namespace that have these labels; all of it, if none are given."""
        pairs = [_label_pair(namespace, *pair) for pair in labels.items()]
        if not pairs:
            return self.of_type("", "pods", namespace)
        rarest = min(pairs, key=self._labelled.count)
        label_items = labels.items()
        candidates = self._labelled.get(rarest)
        return [
            r for r in candidates if label_items <= mapping(self[r], "metadata", "labels").items()
        ]

    def unmanaged(self, group: str, resource: str, namespace: str) -> list[Ref]:
        """The objects of a type in a namespace that no controller manages."""
        return self._free.get(f"{group}/{resource}/{namespace}")

    def controller_of(self, obj: JsonObject) -> Ref | None:
        """The object that manages this one, if it exists."""
        uid = controller_uid(obj)
        return self._by_uid.get(uid) if uid else None

    def managers_of(self, obj: JsonObject) -> Iterator[JsonObject]:
        """The object's controller, its controller, and so on, as far as they exist."""
        ref = self.controller_of(obj)
        visited: set[Ref] = set()
        while ref is not None and ref not in visited:
            visited.add(ref)
            manager = self._objects[ref]
            yield manager
            ref = self.controller_of(manager)

    # keeping it ---------------------------------------------------------------------------------

    def apply(self, change: Change) -> Ref:
        """Take in a write; the ref of its object."""
        ref = ref_of(change.group, change.resource, change.new)
        if change.type == "DELETED":
            self._remove(ref)
        else:
            self._put(ref, change.new)
        return ref

    def load(self, cluster: Cluster) -> None:
        """Forget everything and read the whole cluster."""
        for ref in list(self._objects):
            self._remove(ref)
        for gvr in _types_of(cluster):
            *group, _, resource = gvr.split("/")
            for obj in cluster.shared(gvr):
                self._put(ref_of("/".join(group), resource, obj), obj)

    def _put(self, ref: Ref, obj: JsonObject) -> None:
        old = self._objects.get(ref)
        if old is not None and uid_of(old) != uid_of(obj):
            del self._by_uid[uid_of(old)]
        self._objects[ref] = obj
        self._by_uid[uid_of(obj)] = ref
        self._move(ref, old, obj)

    def _remove(self, ref: Ref) -> None:
        old = self._objects.pop(ref, None)
        if old is not None:
            self._by_uid.pop(uid_of(old), None)
            self._move(ref, old, None)

    def _move(self, ref: Ref, old: JsonObject | None, new: JsonObject | None) -> None:
        if old is None or new is None:
            for index in self._by_ref:
                index.move(ref, old, new)
        for index in self._by_content:
            index.move(ref, old, new)
        if _is_pod(ref) and mapping(old, "metadata", "labels") != mapping(
            new, "metadata", "labels"
        ):
            self._labelled.move(ref, old, new)  # seldom: labels are many and change little


def _whole_type(ref: Ref) -> str:
    return f"{ref.group}/{ref.resource}/*"


def _types_of(cluster: Cluster) -> Iterator[str]:
    for rtype in BUILTIN_TYPES:
        if rtype.store == (rtype.group, rtype.plural):  # events.k8s.io shows core events again
            yield f"{rtype.api_version(rtype.storage_version)}/{rtype.plural}"
    for definition in cluster.list(f"{DEFINITIONS[0]}/v1/{DEFINITIONS[1]}"):
        spec = definition["spec"]
        served = [version["name"] for version in spec["versions"] if version.get("served")]
        if served and listing(definition, "status", "storedVersions"):
            yield f"{spec['group']}/{served[0]}/{spec['names']['plural']}"
