"""Runs `fleetbus restore`: shows deleted objects, and puts them back.

The query API says what was deleted; the objects are created with the rights of whoever runs the
command, at the API servers themselves. Without `--apply` each creation is a dry run.
"""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleetbus.errors import AlreadyExists, ConfigError, KubeError, NotFound
from fleetbus.kube.client import KubeClient, Object
from fleetbus.process import printer
from fleetbus.process.human_time import render_age
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.documents import render_json
from fleetbus_cli.history.answer_parts import lacks, note_beginning, note_window
from fleetbus_cli.history.caller_clients import CallerClients
from fleetbus_cli.history.deleted import Deleted, name_cause, read_deleted
from fleetbus_cli.history.restorable import (
    DeletedObject,
    defined_type,
    missing_owners,
    restored_tree,
    select_restorable,
)
from fleetbus_cli.objects.arguments import Chosen
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.progress import Progress
from fleetbus_cli.table import render_table, warn_incomplete
from fleetbus_cli.target import ApiFlags
from fleetbus_cli.unknown import require_clusters

_HEAD: Final = ("CLUSTER", "TYPE", "NAMESPACE", "NAME", "DELETED", "BY", "RESULT")
_NAMESPACES: Final = "v1/namespaces"
_VOLUMES: Final = "core/persistentvolumes"
_SECRETS: Final = ("secret", "secrets", "v1/secrets")
_KEPT: Final = ("since", "window", "freshness", "incomplete")
_NOT_FOUND: Final = 404
_SERVED_WITHIN_SECONDS: Final = 10.0
"""An API server serves a new type some moments after its definition."""
_AGAIN_SECONDS: Final = 0.5
_MANAGER: Final = "fleetbus-restore"
RESTORED, WOULD_RESTORE, LEFT_OUT, FAILED = "restored", "would be restored", "left out", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreQuery:
    """Which deleted objects to put back, and where.

    Attributes:
        chosen: types and names; empty for all types.
        contexts: `CLUSTER=CONTEXT` each.
        is_applied: else nothing is written.
    """

    chosen: Sequence[Chosen]
    since: str
    clusters: Sequence[str]
    namespace: str
    selector: str
    kubeconfig: pathlib.Path | None
    contexts: Sequence[str]
    is_applied: bool
    output: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fate of one object."""

    deleted: DeletedObject
    result: str
    reason: str = ""
    stripped: Sequence[str] = ()
    """Paths of what its cluster had assigned; the new object gets others."""

    def render(self) -> dict[str, Any]:
        """As in `-o json`."""
        obj = self.deleted
        return {
            "cluster": obj.cluster,
            "resource": obj.resource,
            "namespace": obj.namespace,
            "name": obj.name,
            "deletedAt": obj.deleted_at,
            "deletedBy": obj.deleted_by,
            "result": self.result,
            "reason": self.reason,
            "stripped": list(self.stripped),
        }

    def describe(self) -> str:
        """As in the table."""
        without = f" without {', '.join(self.stripped)}" if self.stripped else ""
        return f"{self.result}{without}" + (f": {self.reason}" if self.reason else "")


def restore_objects(query: RestoreQuery, flags: ApiFlags) -> int:
    """Show and put back deleted objects; return the exit status, 1 if any was refused.

    Raises:
        ConfigError: no query API or no kubeconfig is set, or the query is malformed.
        UnknownName: a cluster is not in the fleet.
    """
    api = ApiClient(flags.resolve())
    try:
        with Progress("reading what was deleted") as progress:
            read = _read(api, query, progress)
        require_clusters(api, [name for name in query.clusters if read.lacks(name)])
    except ApiFailed as e:
        printer.note(f"fleetbus: {e}")
        return 1
    deleted_objects, cut = select_restorable(read.deleted), read.cut
    if not deleted_objects:
        printer.note(f"Nothing {_asked(query)} and is still missing.")
        read.note(query.since)
        _note_secrets(query)
        return 0
    stack = AsyncExitStack()
    clients = CallerClients(kubeconfig=query.kubeconfig, contexts=query.contexts, stack=stack)
    outcomes: list[Outcome] = []
    try:
        asyncio.run(_restore(deleted_objects, _Target(clients, stack, query.is_applied), outcomes))
    finally:
        # Also after Ctrl-C: what was put back until then is back.
        _report(outcomes, query, cut)
        if remaining := len(deleted_objects) - len(outcomes):
            objects = "object was" if remaining == 1 else f"{remaining} objects were"
            state = "is not known to be back" if remaining == 1 else "are not known to be back"
            printer.note(f"interrupted: the other {objects} not reached, or {state}")
    read.note(query.since)
    _note_secrets(query)
    for plural in cut:
        printer.note(f"warning: more {plural} were deleted than one answer can contain")
    if not query.is_applied and any(outcome.result == WOULD_RESTORE for outcome in outcomes):
        printer.note("Nothing was written; --apply restores them.")
    return int(any(outcome.result == FAILED for outcome in outcomes))


def _note_secrets(query: RestoreQuery) -> None:
    """Note that no Secret is among what is shown, where one might be expected."""
    if not query.chosen or any(choice.resource in _SECRETS for choice in query.chosen):
        note = "Secrets are left out: fleetbus does not record their values."
        printer.note(f"note: {note}")


def _report(outcomes: Sequence[Outcome], query: RestoreQuery, cut: Sequence[str]) -> None:
    if query.output == "json":
        printer.json_text(
            render_json({"items": [outcome.render() for outcome in outcomes], "incomplete": cut})
        )
    else:
        _print(outcomes)


@dataclass(slots=True)
class _Read:
    """Deleted objects that are missing, of all types.

    Attributes:
        cut: types of which not all of it was read.
        answers: without their objects.
    """

    deleted: list[DeletedObject] = field(default_factory=list[DeletedObject])
    cut: list[str] = field(default_factory=list[str])
    answers: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def add(self, deleted: Deleted) -> None:
        """Add the deletions of a type."""
        self.deleted += [
            _object(item, deleted) for item in deleted.items if not item["existsAgain"]
        ]
        self.cut += [str(deleted.resource["plural"])] if deleted.remaining else []
        self.answers.append({name: deleted.answer[name] for name in _KEPT})

    def lacks(self, cluster: str) -> bool:
        """Whether no answer knows anything of a cluster."""
        return all(lacks(answer, cluster) for answer in self.answers)

    def note(self, since: str) -> None:
        """Say what the answers may lack (rules A4, A9), each thing once."""
        if not self.answers:
            return
        note_beginning(self.answers[0], since)
        gaps = {(gap["cluster"], gap["reason"]): gap for gap in self._gaps()}
        note_window({"gaps": list(gaps.values())})
        stale = {
            name: answer["freshness"][name]
            for answer in self.answers
            for name in answer["incomplete"]
        }
        warn_incomplete(stale, sorted(stale))

    def _gaps(self) -> list[Mapping[str, Any]]:
        gaps = [gap for answer in self.answers for gap in answer["window"]["gaps"]]
        return sorted(gaps, key=lambda gap: str(gap["to"]))


def _asked(query: RestoreQuery) -> str:
    """Words for what was asked for, where that was not everything."""
    is_chosen = query.chosen or query.clusters or query.namespace or query.selector
    since = f"since {query.since}" if "-" in query.since else f"in the last {query.since}"
    return f"{'that matches ' if is_chosen else ''}was deleted {since}"


def _read(api: ApiClient, query: RestoreQuery, progress: Progress) -> _Read:
    """Read what was deleted and is missing.

    Raises:
        ApiFailed: of some type nothing is known; what is missing may be the namespace or the owner
            of the rest.
    """
    read = _Read()
    is_named = bool(query.chosen)
    for object_query in _queries(api, query):
        progress.show(object_query.resource)
        try:
            read.add(read_deleted(api, object_query, query.since))
        except ApiFailed as e:
            if is_named or e.status != _NOT_FOUND:
                plural = object_query.resource
                problem = f"nothing was restored: it is unknown which {plural} were deleted"
                raise ApiFailed(f"{problem}: {e}", e.status) from e
            # a type of the list that has gone meanwhile, or that nobody may list
    return read


def _queries(api: ApiClient, query: RestoreQuery) -> Iterator[ObjectQuery]:
    base = ObjectQuery(
        resource="",
        namespace=query.namespace,
        selector=query.selector,
        clusters=query.clusters,
    )
    if query.chosen:
        for choice in query.chosen:
            for name in choice.names or ("",):
                yield replace(base, resource=choice.resource, name=name)
        return
    if query.namespace and not query.selector:  # it comes first, if it is gone with its content
        yield replace(base, resource=_NAMESPACES, namespace="", name=query.namespace)
    for resource in api.get("/fleet/v1/resources")["items"]:
        group = "" if resource["group"] == "core" else f".{resource['group']}"
        yield replace(base, resource=f"{resource['plural']}{group}")


def _object(item: Mapping[str, Any], deleted: Deleted) -> DeletedObject:
    resource = deleted.resource
    return DeletedObject(
        cluster=item["cluster"],
        resource=f"{resource['group']}/{resource['plural']}",
        namespace=item["namespace"],
        name=item["name"],
        uid=item["uid"],
        version=str(next(iter(resource["versions"]), "v1")),
        deleted_at=item["deletedAt"],
        deleted_by=name_cause(item["deletedBy"]),
        tree=item["object"],
        cluster_uid=item["clusterUid"],
    )


@dataclass(frozen=True, slots=True)
class _Target:
    """Where objects are put back.

    Attributes:
        clients: of the clusters.
        stack: closes them.
        is_applied: else nothing is written.
    """

    clients: CallerClients
    stack: AsyncExitStack
    is_applied: bool


async def _restore(
    objects: Sequence[DeletedObject], target: _Target, outcomes: list[Outcome]
) -> None:
    """Put objects back, in order; one that is refused stops none of the others.

    Args:
        objects: what was deleted.
        target: where to put it back.
        outcomes: gets the fate of each, as soon as it is known.
    """
    async with target.stack:
        restoring = _Restoring(objects, target.clients, is_applied=target.is_applied)
        for obj in objects:
            outcome = await restoring.put_back(obj)
            outcomes.append(outcome)


class _Restoring:
    """Puts objects back one after another.

    Args:
        objects: all of them.
        clients: of their clusters.
        is_applied: else nothing is written.
    """

    def __init__(
        self, objects: Sequence[DeletedObject], clients: CallerClients, *, is_applied: bool
    ) -> None:
        self._clients = clients
        self._is_applied = is_applied
        self._new_uids: dict[tuple[str, str], str] = {}
        self._restored_volumes: set[tuple[str, str]] = set()
        self._namespaces = {
            (obj.cluster, obj.name) for obj in objects if obj.resource == "core/namespaces"
        }
        self._types = set(filter(None, map(defined_type, objects)))

    async def put_back(self, obj: DeletedObject) -> Outcome:
        """Put an object back, or try."""
        if obj.refusal:
            return Outcome(obj, LEFT_OUT, obj.refusal)
        try:
            return await self._put_back(obj)
        except (KubeError, ConfigError) as e:
            return Outcome(obj, FAILED, str(e))
        except RecursionError:
            return Outcome(obj, FAILED, "its last state is nested too deep")

    async def _put_back(self, obj: DeletedObject) -> Outcome:
        stripped: list[str] = []
        try:
            client = await self._clients.get(obj.cluster, obj.cluster_uid)
            await _find_living_owners(client, obj, self._new_uids)
            if missing := missing_owners(obj, self._new_uids):
                return Outcome(obj, LEFT_OUT, f"its owner is gone: {', '.join(missing)}")
            tree, stripped = restored_tree(obj, self._new_uids, self._volumes(obj.cluster))
            uid = await self._create(client, obj, tree)
        except AlreadyExists:
            return Outcome(obj, LEFT_OUT, "it exists again")
        except NotFound as e:
            prerequisite = self._waits_for(obj) if not self._is_applied else ""
            return (
                Outcome(obj, WOULD_RESTORE, prerequisite, stripped)
                if prerequisite
                else _failed(obj, e)
            )
        self._new_uids[obj.cluster, obj.uid] = uid or obj.uid
        if obj.resource == _VOLUMES:
            self._restored_volumes.add((obj.cluster, obj.name))
        return Outcome(obj, RESTORED if self._is_applied else WOULD_RESTORE, "", stripped)

    def _volumes(self, cluster: str) -> set[str]:
        return {name for of, name in self._restored_volumes if of == cluster}

    async def _create(self, client: KubeClient, obj: DeletedObject, tree: Object) -> str:
        """Create an object; a type that was just defined again may take a moment."""
        is_new = self._is_applied and (obj.cluster, obj.resource) in self._types
        ends = time.monotonic() + _SERVED_WITHIN_SECONDS
        while True:
            try:
                return await _create(client, obj, tree, is_dry_run=not self._is_applied)
            except NotFound:
                if not is_new or time.monotonic() > ends:
                    raise
            await asyncio.sleep(_AGAIN_SECONDS)

    def _waits_for(self, obj: DeletedObject) -> str:
        """The prerequisite that a dry run lacks, and that would exist by then; empty for none."""
        if (obj.cluster, obj.resource) in self._types:
            return "after its definition"
        return "after its namespace" if (obj.cluster, obj.namespace) in self._namespaces else ""


async def _find_living_owners(
    client: KubeClient, obj: DeletedObject, new_uids: dict[tuple[str, str], str]
) -> None:
    """Note the owners of an object that were never deleted."""
    for owner in obj.owners:
        uid = str(owner.get("uid"))
        if (obj.cluster, uid) in new_uids:
            continue
        served = await client.discover(str(owner.get("apiVersion")), str(owner.get("kind")))
        if served is None:
            continue
        namespace = obj.namespace if served.namespaced else ""
        live_owner = await client.get(served.resource, namespace, str(owner.get("name")))
        if live_owner is not None and live_owner.get("metadata", {}).get("uid") == uid:
            new_uids[obj.cluster, uid] = uid


async def _create(client: KubeClient, obj: DeletedObject, tree: Object, *, is_dry_run: bool) -> str:
    """Create an object; returns its UID."""
    group, _, plural = obj.resource.rpartition("/")
    version = str(tree["apiVersion"]).rpartition("/")[2]
    name = f"{version}/{plural}" if group == "core" else f"{group}/{version}/{plural}"
    created = await client.create(name, tree, field_manager=_MANAGER, dry_run=is_dry_run)
    return str(created.get("metadata", {}).get("uid", ""))


def _failed(obj: DeletedObject, error: Exception) -> Outcome:
    if isinstance(error, NotFound) and obj.namespace:
        hint = f"if it was deleted too, restore namespaces/{obj.namespace} with it"
        return Outcome(obj, FAILED, f"{error}: {hint}")
    return Outcome(obj, FAILED, str(error))


def _print(outcomes: Sequence[Outcome]) -> None:
    rows = [
        (
            outcome.deleted.cluster,
            outcome.deleted.resource.removeprefix("core/"),
            outcome.deleted.namespace,
            outcome.deleted.name,
            f"{render_age(outcome.deleted.deleted_at)} ago",
            outcome.deleted.deleted_by,
            outcome.describe(),
        )
        for outcome in outcomes
    ]
    if rows:  # none after an early Ctrl-C
        printer.block(render_table(_HEAD, rows))
