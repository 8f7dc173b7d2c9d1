"""Complete objects straight into the store, as from a backup of another cluster.

They are taken as they are: status, owners, managedFields, uid and dates stay, nothing is defaulted
and nothing validated. They get revisions of this cluster, and watches see them come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.types.strategy import NAMESPACES
from fleetbus_emulator.apiserver.write.write import to_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]


def restore(
    state: State,
    served: Callable[[str], Served],
    objects: Iterable[tuple[str, JsonObject]],
    *,
    replace: bool = False,
) -> int:
    """Store objects; returns how many.

    Args:
        state: The cluster.
        served: Finds the type that a string like `apps/v1/deployments` names.
        objects: Types and objects, owners and namespaces first. Parts of objects may be shared
            among them; nobody may change them afterwards.
        replace: replace an object that exists, whatever its uid.

    Raises:
        ApiError: 409, an object exists; 404, its namespace does not; 422, it has no name. What
            came before it is stored.
        NotServed: There is no such type.
    """
    types: dict[str, Served] = {}
    count = 0
    for gvr, obj in objects:
        served_type = types.get(gvr)
        if served_type is None:
            served_type = types[gvr] = served(gvr)
        _restore_one(state, served_type, obj, replace=replace)
        count += 1
    return count


def _restore_one(state: State, served: Served, obj: JsonObject, *, replace: bool) -> None:
    rtype = served.rtype
    stored = to_storage(served, obj)
    meta = stored["metadata"] = dict(obj["metadata"])
    name, namespace = meta.get("name"), meta.get("namespace")
    if not name or (rtype.namespaced and not namespace):
        raise errors.invalid_object(
            rtype,
            name or "",
            [errors.Cause("metadata", "Required value: name and namespace", "FieldValueRequired")],
        )
    key = rtype.key(namespace, name)
    old = state.store(rtype).get(key)
    if old is not None and not replace:
        raise errors.already_exists(rtype, name, deleting=False)
    if rtype.namespaced and state.store(NAMESPACES).get(("", namespace or "")) is None:
        raise errors.namespace_not_found(namespace or "")
    if not meta.get("uid"):
        meta["uid"] = state.new_uid()
    if not meta.get("creationTimestamp"):
        meta["creationTimestamp"] = state.timestamp()
    state.put(rtype, key, stored, old)
