"""Create and update: the one way by which objects come and change.

Every write, whether PUT, a patch, an apply or a subresource, is an `update` with another way of
making the new object from the old one; what follows (conflicts, system fields, defaults,
validation, generation, field ownership, no-op) is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.encoding import decode
from fleetbus_emulator.apiserver.errors import ApiError, Cause
from fleetbus_emulator.apiserver.json_tree import listing, mapping, same
from fleetbus_emulator.apiserver.storage.state import State
from fleetbus_emulator.apiserver.storage.store import Stored
from fleetbus_emulator.apiserver.types import object_meta, strategy
from fleetbus_emulator.apiserver.types.resource import ResourceType
from fleetbus_emulator.apiserver.types.served import Served
from fleetbus_emulator.apiserver.write import identity, managed_fields
from fleetbus_emulator.apiserver.write.target import Target

JsonObject = dict[str, Any]
Admit = Callable[[JsonObject, JsonObject | None], None]
LARGEST_OBJECT = 1536 * 1024  # bytes; the limit of etcd, below that of a request


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The query parameters of a write.

    Attributes:
        manager: Who becomes owner of the fields that change.
        validation: Strict, Warn or Ignore: what happens with unknown fields.
        warnings: Collects the Warning headers.
        admit: Gets the new object and the old one before they are stored; may refuse the write.
    """

    manager: str = "unknown"
    dry_run: bool = False
    validation: str = "Warn"
    force: bool = False
    warnings: list[str] = field(default_factory=list[str])
    admit: Admit | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The object after a write; `created` decides between 200 and 201."""

    stored: Stored
    created: bool = False


class Unchanged(Exception):
    """Raised by a transformation that finds nothing to do."""


def create(state: State, target: Target, body: JsonObject, options: WriteOptions) -> Outcome:
    """Create an object; takes ownership of `body`."""
    obj = _storage_form(target, body)
    meta = _metadata_of(target.served, obj, options)
    identity.check_place(target, meta)
    given_rv = meta.get("resourceVersion")
    for name in (*identity.SYSTEM_FIELDS, "resourceVersion", "managedFields"):
        meta.pop(name, None)
    target = _named(state, target, meta)
    check_namespace(state, target)
    _finish_new(state, target, obj, options)
    if given_rv:
        message = "resourceVersion should not be set on objects to be created"
        raise ApiError(500, None, message)
    return _commit_new(state, target, obj, options)


def create_applied(state: State, target: Target, obj: JsonObject, options: WriteOptions) -> Outcome:
    """Create the object that a server-side apply describes; managedFields are its own."""
    check_namespace(state, target)
    meta = obj["metadata"]
    meta.pop("resourceVersion", None)
    managed_fields = meta.pop("managedFields", None)
    meta.update({"name": target.name})
    if target.rtype.namespaced:
        meta["namespace"] = target.namespace
    _finish_new(state, target, obj, replace(options, manager=""))
    if managed_fields:
        meta["managedFields"] = managed_fields
    return _commit_new(state, target, obj, options)


def _finish_new(state: State, target: Target, obj: JsonObject, options: WriteOptions) -> None:
    meta = obj["metadata"]
    strategy.prepare_create(state, target.served, obj, options.validation, options.warnings)
    causes = object_meta.metadata_problems(target.rtype, meta)
    causes += strategy.problems(state, target.served, obj, None)
    if causes:
        raise errors.invalid_object(target.rtype, meta.get("name") or "", causes)
    options.warnings.extend(object_meta.finalizer_warnings(meta))
    meta.setdefault("uid", state.new_uid())  # a Job chose its own for its selector
    meta["creationTimestamp"] = state.timestamp()
    if target.rtype.has_generation:
        meta["generation"] = 1
    if options.manager:
        managed_fields.record_update(ownership(state, target, options), {}, obj)


def _commit_new(state: State, target: Target, obj: JsonObject, options: WriteOptions) -> Outcome:
    if options.admit is not None:
        options.admit(obj, None)
    existing = state.store(target.rtype).get(target.key)
    if existing is not None:
        deleting = "deletionTimestamp" in existing.obj["metadata"]
        raise errors.already_exists(target.rtype, target.name, deleting=deleting)
    _check_storable(obj)
    if options.dry_run:
        return Outcome(_unstored(target, obj, 0), created=True)
    return Outcome(state.put(target.rtype, target.key, obj, None), created=True)


def update(
    state: State,
    target: Target,
    transform: Callable[[JsonObject], JsonObject],
    options: WriteOptions,
    *,
    by_patch: bool = True,
    finish: Callable[[JsonObject, JsonObject], None] | None = None,
) -> Outcome:
    """Replace an object by what `transform` makes of a copy of it.

    Args:
        state: The cluster.
        target: Object and subresource.
        transform: Gets a deep copy it may change; may raise Unchanged.
        options: The write's parameters.
        by_patch: A wrong uid is 422 for patches, 409 for a PUT.
        finish: Keeps managedFields, from the old and the new object; by default those of an
            Update by the options' manager.
    """
    old = state.store(target.rtype).get(target.key)
    if old is None:
        raise errors.not_found(target.rtype, target.name)
    try:
        new = transform(old.copy())
    except Unchanged:
        return Outcome(old)
    new = _checked(state, target, old, new, options, by_patch=by_patch)
    if options.admit is not None:
        options.admit(new, old.obj)
    if finish is None:
        managed_fields.record_update(ownership(state, target, options), old.obj, new)
    else:
        finish(old.obj, new)
    return Outcome(old) if same(old.obj, new) else _commit(state, target, old, new, options)


def _commit(
    state: State, target: Target, old: Stored, new: JsonObject, options: WriteOptions
) -> Outcome:
    _check_storable(new)
    if options.dry_run:
        return Outcome(_unstored(target, new, old.rv))
    if _is_gone(target.rtype, new):
        removed = state.remove(target.rtype, old)
        new["metadata"]["resourceVersion"] = str(removed.rv)
        return Outcome(_unstored(target, new, removed.rv))
    return Outcome(state.put(target.rtype, target.key, new, old))


def _checked(
    state: State,
    target: Target,
    old: Stored,
    new: JsonObject,
    options: WriteOptions,
    *,
    by_patch: bool,
) -> JsonObject:
    """The new object as it may be stored, but for its managedFields."""
    new["apiVersion"], new["kind"] = old.obj["apiVersion"], old.obj["kind"]
    meta = _metadata_of(target.served, new, options, old.obj)
    identity.check_identity(target, meta, old, by_patch=by_patch)
    # Custom resources are pruned and defaulted in place, also what comes from the old object.
    base = old.copy() if target.rtype.custom else old.obj
    new = strategy.restrict(target.served, target.subresource, base, new)
    identity.restore_system_fields(new["metadata"], old.obj["metadata"])
    _check_update(state, target, new, old, options)
    _bump_generation(target, new, old.obj)
    return new


def _check_update(
    state: State, target: Target, new: JsonObject, old: Stored, options: WriteOptions
) -> None:
    strategy.prepare_update(
        state, target.served, new, target.subresource, options.validation, options.warnings
    )
    causes = object_meta.metadata_problems(target.rtype, new["metadata"])
    causes += identity.new_finalizers(new["metadata"], old.obj["metadata"])
    causes += strategy.problems(state, target.served, new, old.obj)
    if causes:
        raise errors.invalid_object(target.rtype, target.name, causes)
    before = set(listing(old.obj["metadata"], "finalizers"))
    added = [f for f in listing(new["metadata"], "finalizers") if f not in before]
    options.warnings.extend(object_meta.finalizer_warnings({"finalizers": added}))


def ownership(state: State, target: Target, options: WriteOptions) -> managed_fields.Ownership:
    """On whose behalf, and for what, a write is recorded."""
    return managed_fields.Ownership(
        manager=options.manager,
        api_version=target.served.api_version,
        subresource=target.subresource,
        time=state.timestamp(),
        merge_rule=target.version.merge_rule,
        custom=target.rtype.custom,
    )


def _check_storable(obj: JsonObject) -> None:
    """Refuse what could be stored and then not be read: one such object would spoil every list."""
    try:
        size = len(orjson.dumps([[[obj]]]))  # as deep as a Table holds its objects
    except TypeError as error:  # what orjson raises
        raise errors.bad_request(f"the object cannot be encoded: {error}") from None
    if size > LARGEST_OBJECT:
        raise too_large()


def too_large() -> ApiError:
    """500: etcd does not take so much."""
    return ApiError(500, None, "etcdserver: request is too large")


def _unstored(target: Target, obj: JsonObject, rv: int) -> Stored:
    return Stored(target.key, obj, rv, sort_keys=target.rtype.custom)


# bodies -----------------------------------------------------------------------------------------


def check_kind(target: Target, body: JsonObject) -> None:
    """Refuse a body of another kind or version; what it leaves out is not checked here."""
    kind, api_version = body.get("kind"), body.get("apiVersion")
    expected = target.served.api_version
    if api_version and api_version != expected:
        raise errors.bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({expected})"
        )
    if kind and kind != target.rtype.kind:
        cause = Cause("kind", f'Invalid value: "{kind}": must be {target.rtype.kind}')
        name = mapping(body, "metadata").get("name") or ""
        raise errors.invalid(kind, name, [cause], group=target.rtype.group)


def _storage_form(target: Target, body: JsonObject) -> JsonObject:
    check_kind(target, body)
    return to_storage(target.served, body)


def to_storage(served: Served, body: JsonObject) -> JsonObject:
    """The body as it is stored: the storage version, kind and apiVersion in front."""
    rtype = served.rtype
    fields = {name: value for name, value in body.items() if name not in ("kind", "apiVersion")}
    if served.version.conversion is not None:
        fields = served.version.conversion.to_stored(fields)
    head = {"apiVersion": rtype.api_version(rtype.storage_version), "kind": rtype.kind}
    if rtype.store != (rtype.group, rtype.plural):
        head["apiVersion"] = "v1"  # events.k8s.io keeps its objects as core events
    return {**head, **fields}


def _metadata_of(
    served: Served, obj: JsonObject, options: WriteOptions, previous: JsonObject | None = None
) -> JsonObject:
    """Read an object as Go does, but for what is as in the known one; returns its metadata."""
    texts = decode.unknown(decode.read(served, obj, previous))
    decode.report_fields(served, texts, options.validation, options.warnings)
    meta = decode.metadata_of(obj)
    for name in ("labels", "annotations"):
        values = meta.get(name)
        if values is None:
            continue
        present = {key: value for key, value in sorted(values.items()) if value is not None}
        if present:
            meta[name] = present  # in the order of Go's maps
        else:
            del meta[name]
    for name in ("finalizers", "ownerReferences"):
        if name in meta and not meta[name]:
            del meta[name]
    return meta


def _named(state: State, target: Target, meta: JsonObject) -> Target:
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = object_meta.generate_name(meta["generateName"], state.random)
    return replace(target, name=meta.get("name") or "")


def check_namespace(state: State, target: Target) -> None:
    """Refuse a create in a namespace that is missing or terminating."""
    if not target.rtype.namespaced or target.namespace is None:
        return
    namespace = state.store(strategy.NAMESPACES).get(("", target.namespace))
    if namespace is None:
        raise errors.namespace_not_found(target.namespace)
    if "deletionTimestamp" in namespace.obj["metadata"]:
        raise _terminating_namespace(target, target.namespace)


def _terminating_namespace(target: Target, namespace: str) -> ApiError:
    message = (
        f'{target.rtype.qualified} "{target.name}" is forbidden: unable to create new content in '
        f"namespace {namespace} because it is being terminated"
    )
    cause = Cause(
        "metadata.namespace", f"namespace {namespace} is being terminated", "NamespaceTerminating"
    )
    details = {"name": target.name, "group": target.rtype.group, "kind": target.rtype.plural}
    details = {key: value for key, value in details.items() if value}
    return ApiError(403, "Forbidden", message, details=details | {"causes": [cause.to_dict()]})


# updates ----------------------------------------------------------------------------------------


def _bump_generation(target: Target, new: JsonObject, old: JsonObject) -> None:
    meta = new["metadata"]
    if "generation" not in meta:
        return
    if strategy.moves_generation(target.served, target.subresource, old, new):
        meta["generation"] += 1


def _is_gone(rtype: ResourceType, obj: JsonObject) -> bool:
    """Whether a deleted object has nothing left that holds it."""
    meta = obj["metadata"]
    if "deletionTimestamp" not in meta or meta.get("finalizers"):
        return False
    if rtype is strategy.NAMESPACES:
        return not mapping(obj, "spec").get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")


def replace_object(
    state: State, target: Target, body: JsonObject, options: WriteOptions
) -> Outcome:
    """PUT: replace an object by a body, or create it where the type allows that."""
    check_kind(target, body)
    new = to_storage(target.served, body)
    exists = state.store(target.rtype).get(target.key) is not None
    if exists or target.subresource:
        return update(state, target, lambda _: new, options, by_patch=False)
    meta = _metadata_of(target.served, new, options)
    identity.check_put_of_missing(target, meta)
    if not target.rtype.create_on_update:
        raise errors.not_found(target.rtype, target.name)
    meta.pop("resourceVersion", None)
    return create(state, target, new_body(target.served, new), options)


def new_body(served: Served, stored_form: JsonObject) -> JsonObject:
    """The stored form as an object of a served version."""
    fields = {k: v for k, v in stored_form.items() if k not in ("kind", "apiVersion")}
    if served.version.conversion is not None:
        fields = served.version.conversion.to_served(fields)
    return {"apiVersion": served.api_version, "kind": served.rtype.kind, **fields}
