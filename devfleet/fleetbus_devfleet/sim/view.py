"""What the controllers see of a cluster: its objects, indexed, kept up to date by its writes.

The view is never stale: the cluster tells of a write before the write returns. That spares the
controllers the expectations and the back-off by which real ones live with stale caches. Objects
are shared with the API server and must never be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetbus_devfleet.apiserver.builtin import BUILTIN_TYPES
from fleetbus_devfleet.apiserver.tree import listing, mapping

if TYPE_CHECKING:
    from fleetbus_devfleet.apiserver import Change, Cluster

JsonObject = dict[str, Any]
DEFINITIONS = ("apiextensions.k8s.io", "customresourcedefinitions")


class Ref(NamedTuple):
    """Names an object. A name can be taken over by a successor with another uid."""

    group: str
    resource: str
    namespace: str
    name: str

    def sibling(self, name: str) -> Ref:
        """The object of the same type and namespace that has another name."""
        return self._replace(name=name)


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
    return listing(obj, "metadata", "ownerReferences")


def controller_uid(obj: JsonObject) -> str | None:
    """The uid of the owner that manages the object, if there is one."""
    return next((owner.get("uid") for owner in owners_of(obj) if owner.get("controller")), None)


class Index:
    """Refs by a text that is computed from each object."""

    def __init__(self, texts_of: Callable[[Ref, JsonObject], Collection[str]]) -> None:
        self._texts_of = texts_of
        # Dicts, not sets: their order does not depend on the hash seed of the process.
        self._refs: dict[str, dict[Ref, None]] = {}

    def move(self, ref: Ref, old: JsonObject | None, new: JsonObject | None) -> None:
        """Take an object in (no `old`), out (no `new`), or to where it belongs now."""
        before = () if old is None else self._texts_of(ref, old)
        after = () if new is None else self._texts_of(ref, new)
        for text in before:
            if text not in after:
                self._discard(text, ref)
        for text in after:
            self._refs.setdefault(text, {})[ref] = None

    def _discard(self, text: str, ref: Ref) -> None:
        refs = self._refs.get(text)
        if refs is not None:
            refs.pop(ref, None)
            if not refs:
                del self._refs[text]

    def get(self, text: str) -> list[Ref]:
        """The refs under a text, oldest first."""
        return list(self._refs.get(text, ()))

    def count(self, text: str) -> int:
        """How many refs there are under a text."""
        return len(self._refs.get(text, ()))


def _type_and_namespace(ref: Ref) -> str:
    return f"{ref.group}/{ref.resource}/{ref.namespace}"


def _free(ref: Ref, obj: JsonObject) -> list[str]:
    return [] if controller_uid(obj) else [_type_and_namespace(ref)]


def _is_pod(ref: Ref) -> bool:
    return (ref.group, ref.resource) == ("", "pods")


def _node(ref: Ref, obj: JsonObject) -> list[str]:
    node = mapping(obj, "spec").get("nodeName") if _is_pod(ref) else None
    return [node] if node else []


def _pod_ip(ref: Ref, obj: JsonObject) -> list[str]:
    address = mapping(obj, "status").get("podIP") if _is_pod(ref) else None
    return [address] if address else []


class View:
    """The objects of one cluster.

    Attributes:
        owned: By the uid of every owner.
        on_node: Pods by the name of their node.
        with_ip: Pods by their address.
        in_namespace: By namespace; cluster-scoped objects under the empty text.
    """

    def __init__(self) -> None:
        self._objects: dict[Ref, JsonObject] = {}
        self._by_uid: dict[str, Ref] = {}
        self.owned = Index(lambda _, obj: [o["uid"] for o in owners_of(obj) if o.get("uid")])
        self.on_node = Index(_node)
        self.with_ip = Index(_pod_ip)
        self.in_namespace = Index(lambda ref, _: [ref.namespace])
        self._of_type = Index(lambda ref, _: [_type_and_namespace(ref), _whole_type(ref)])
        self._free = Index(_free)

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
        """How the cluster's in-process calls name the type of an object that exists."""
        return f"{self._objects[ref]['apiVersion']}/{ref.resource}"

    def of_type(self, group: str, resource: str, namespace: str | None = None) -> list[Ref]:
        """All objects of a type, in one namespace or in all."""
        place = "*" if namespace is None else namespace
        return self._of_type.get(f"{group}/{resource}/{place}")

    def controlled(self, uid: str, group: str, resource: str) -> list[Ref]:
        """The objects of a type that are managed by the owner with the uid."""
        return [
            ref
            for ref in self.owned.get(uid)
            if (ref.group, ref.resource) == (group, resource)
            and controller_uid(self._objects[ref]) == uid
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
        seen: set[Ref] = set()
        while ref is not None and ref not in seen:
            seen.add(ref)
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
            for obj in cluster.list(gvr):
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
        indexes = (
            self.owned,
            self.on_node,
            self.with_ip,
            self.in_namespace,
            self._of_type,
            self._free,
        )
        for index in indexes:
            index.move(ref, old, new)


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
