"""Makes the accounts of fleetbus on a member, and removes them again."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Final

from fleetbus.clusters.member_rights import NAMESPACE, WATCHER, WRITER
from fleetbus.clusters.membership import JOINED_LABEL, NotPossible
from fleetbus.errors import ConfigError, Forbidden, KubeError, NotFound
from fleetbus.kube.access_reviews import Right, missing_rights
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.kube.json_fields import labels
from fleetbus_cli.bootstrap.accounts import (
    HUB_LABEL,
    IMPERSONATOR,
    PLACES,
    THE_NAMESPACE,
    Place,
    impersonator_places,
    is_ours,
)
from fleetbus_proto.resources import Resource

MANAGER: Final = "fleetbus-join"
_ROOT_CA: Final = ("core/configmaps", "kube-root-ca.crt")
_DEFAULT: Final = ("core/serviceaccounts", "default")
_EVENTS: Final = frozenset({"core/events", "events.k8s.io/events"})
_NO_OBJECTS: Final = frozenset({"metrics.k8s.io"})
"""Groups that compute what they list."""


class HalfDone(ConfigError):
    """It failed on the way; the message names what was done so far, and how to go on."""


@contextmanager
def member_errors(name: str) -> Generator[None]:
    """Turn what a member refuses, before anything is changed, into `NotPossible`."""
    try:
        yield
    except TimeoutError as e:
        raise NotPossible(f"cluster {name!r} does not answer") from e
    except KubeError as e:
        raise NotPossible(f"cluster {name!r}: {e}") from e


async def require_rights(member: KubeClient, objects: Mapping[Place, Object]) -> None:
    """Make sure that the administrator can make these objects, before any is made.

    Raises:
        NotPossible: a right is missing; the message names it.
        KubeError: the member refused, or did not answer.
    """
    rights = [
        Right(verb, place.resource, place.namespace, "" if verb == "create" else place.name)
        for place in objects
        for verb in ("get", "create", "patch")
    ]
    tokens = Resource("core", "v1", "serviceaccounts/token")
    rights += [Right("create", tokens, NAMESPACE, name) for name in (WATCHER, WRITER)]
    if missing := await missing_rights(member, rights):
        raise NotPossible(_lacks(missing))
    for place, obj in objects.items():
        if place.kind == "ClusterRole" or place in impersonator_places(place.namespace):
            # It refuses to give rights that the administrator does not have; a dry run tells.
            try:
                await member.apply(
                    place.resource, obj, field_manager=MANAGER, force=True, dry_run=True
                )
            except KubeError as e:
                raise NotPossible(f"the administrator cannot create {place}: {e}") from e


async def find_ours(member: KubeClient, hub_uid: str) -> dict[Place, Object]:
    """The objects on the member that a join of this hub made.

    Raises:
        KubeError: the member refused, or did not answer.
    """
    objects: dict[Place, Object] = {}
    for place in (*PLACES, *await _impersonators(member, hub_uid)):
        obj = await _read(member, place)
        if obj is not None and is_ours(obj, hub_uid):
            objects[place] = obj
    return objects


async def _impersonators(member: KubeClient, hub_uid: str) -> list[Place]:
    """Where a join of this hub allowed accounts to be impersonated, in any namespace."""
    places: list[Place] = []
    for empty in impersonator_places(""):
        try:
            objects = await member.list(empty.resource, label_selector=f"{HUB_LABEL}={hub_uid}")
        except Forbidden:
            # An administrator of a few namespaces. Without the account that they are bound to,
            # these allow nothing.
            return []
        named = [obj["metadata"] for obj in objects if obj["metadata"]["name"] == IMPERSONATOR]
        places += [empty._replace(namespace=metadata["namespace"]) for metadata in named]
    return places


async def apply_objects(
    member: KubeClient, objects: Mapping[Place, Object], hub_uid: str
) -> list[Place]:
    """Make or repair the objects; return where they are.

    Raises:
        NotPossible: one exists that no join of this hub made; nothing was changed.
        HalfDone: the member refused one, or did not answer.
    """
    foreign = await _foreign(member, objects, hub_uid)
    if others := [place for place in foreign if place != THE_NAMESPACE]:
        raise NotPossible(
            f"{others[0]} exists and was not created by a join of this hub; delete it first if it"
            " is not needed"
        )
    done: list[Place] = []
    for place, obj in objects.items():
        if place in foreign:
            continue  # somebody else's namespace is used, not taken over
        try:
            await member.apply(place.resource, obj, field_manager=MANAGER, force=True)
        except KubeError as e:
            raise half_done(f"{place}: {e}", done) from e
        done.append(place)
    return done


async def remove_objects(
    member: KubeClient, hub_uid: str, places: Iterable[Place] | None = None
) -> tuple[list[Place], str]:
    """Delete what a join of this hub made, and nothing else.

    Args:
        member: the member, with the administrator's rights.
        hub_uid: the UID of the hub's kube-system.
        places: only these.

    Returns:
        What is gone now, and why the namespace is kept; empty if it is not.

    Raises:
        HalfDone: the member refused, or did not answer.
    """
    if places is not None and not (places := set(places)):
        return [], ""
    try:
        objects = await find_ours(member, hub_uid)
    except KubeError as e:
        raise half_done(f"the existing objects cannot be read: {e}", (), "deleted") from e
    chosen = objects.keys() if places is None else objects.keys() & set(places)
    gone: list[Place] = []
    reason = ""
    # Bindings first, so that the accounts can do nothing from now on; the namespace last.
    for place in sorted(chosen, key=_removal_order):
        try:
            reason = await _why_kept(member) if place == THE_NAMESPACE else ""
            if not reason:
                uid = objects[place]["metadata"]["uid"]
                await member.delete(place.resource, place.namespace, place.name, uid=uid)
                gone.append(place)
        except KubeError as e:
            raise half_done(f"{place}: {e}", gone, "deleted") from e
    return gone, reason


async def require_removal_rights(member: KubeClient, places: Iterable[Place]) -> None:
    """Make sure that the administrator can delete these objects, before any is deleted.

    Raises:
        NotPossible: a right is missing; the message names it.
        KubeError: the member refused, or did not answer.
    """
    rights = [
        Right("delete", place.resource, place.namespace, place.name)
        for place in places
        if place != THE_NAMESPACE  # it may stay
    ]
    if missing := await missing_rights(member, rights):
        raise NotPossible(_lacks(missing))


def joined_as(objects: Mapping[Place, Object]) -> set[str]:
    """The names in the fleet for which these objects were made."""
    return {labels(obj).get(JOINED_LABEL, "") for obj in objects.values()}


def half_done(why: str, done: Iterable[Place | str], verb: str = "made") -> HalfDone:
    """An error that names what was done before it."""
    listed = ", ".join(map(str, done)) or "nothing"
    return HalfDone(f"{why}; {verb} so far: {listed}; run the same command again to continue")


def _lacks(missing: list[Right]) -> str:
    listed = "; ".join(map(str, missing))
    return f"the administrator's kubeconfig lacks rights on the cluster: {listed}"


async def _foreign(
    member: KubeClient, objects: Mapping[Place, Object], hub_uid: str
) -> list[Place]:
    """Where objects exist that no join of this hub made."""
    places: list[Place] = []
    for place in objects:
        obj = await _read(member, place)
        if obj is not None and not is_ours(obj, hub_uid):
            places.append(place)
    return places


async def _read(member: KubeClient, place: Place) -> Object | None:
    return await member.get(place.resource, place.namespace, place.name)


def _removal_order(place: Place) -> tuple[bool, bool, Place]:
    return (place == THE_NAMESPACE, not place.kind.endswith("Binding"), place)


async def _why_kept(member: KubeClient) -> str:
    """Why our namespace must stay: deleting it would delete everything in it (rule D10)."""
    for api in await member.discovery.refresh():
        if not _holds_objects(api):
            continue
        try:
            objects = await member.list(api.resource, NAMESPACE)
        except NotFound:
            continue  # the type has just gone
        except KubeError as e:
            return f"its content is unknown: {e}"
        others = [obj for obj in objects if not _is_made_by_cluster(api.resource.key, obj)]
        if others:
            name = others[0]["metadata"]["name"]
            return f"it contains other objects, like {api.resource.plural} {name}"
    if failed := ", ".join(sorted(member.discovery.failed)):
        return f"its content is unknown: {failed} cannot be discovered"
    return ""


def _holds_objects(api: ApiResource) -> bool:
    is_stored = api.resource.key not in _EVENTS and api.resource.group not in _NO_OBJECTS
    return api.namespaced and api.preferred and "list" in api.verbs and is_stored


def _is_made_by_cluster(key: str, obj: Object) -> bool:
    is_leaving = bool(obj["metadata"].get("deletionTimestamp"))
    return is_leaving or (key, obj["metadata"]["name"]) in (_ROOT_CA, _DEFAULT)
