"""Resolves the selections of the watch spec to the resources that the API server serves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import orjson

from fleetbus.kube.discovery import Discovery
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.kube.list_watch.listing import WatchTarget
from fleetbus.watchers.spec import DENIED
from fleetbus_proto.events import ResourceStatus, WatchSet
from fleetbus_proto.resources import CORE, parse_resource_name
from fleetbus_watcher.settings import ALL, Selection
from fleetbus_watcher.transform.secret_redaction import SECRETS, without_releases

NOT_FOUND: Final = "NotFound"
_NEVER_GROUPS: Final = frozenset(
    {"metrics.k8s.io", "authorization.k8s.io", "authentication.k8s.io"}
)
"""Computed, not stored by the API server: there is nothing to watch."""


@dataclass(frozen=True, slots=True)
class SelectedResource:
    """One resource of one scope to be watched."""

    api: ApiResource
    target: WatchTarget
    scope: str

    @property
    def key(self) -> tuple[str, str]:
        """Its identity: group and plural, and scope, but not the served version (rule W17)."""
        return (self.api.resource.key, self.scope)


@dataclass(slots=True)
class SelectionResult:
    """The resources to watch, and the selections that cannot be watched."""

    resources: dict[tuple[str, str], SelectedResource] = field(
        default_factory=dict[tuple[str, str], SelectedResource]
    )
    refused: list[ResourceStatus] = field(default_factory=list[ResourceStatus])
    """Selections that the server does not serve, or that are never published."""
    in_doubt: frozenset[str] = frozenset()
    """Groups whose discovery failed: the absence of their resources proves nothing (W8)."""
    served: frozenset[str] = frozenset()
    """All resources that the server serves, watched or not, as group/plural."""
    denied: frozenset[str] = frozenset()
    """Resources that `*` leaves out, as group/plural; those with entries of their own, too."""
    watch_set: WatchSet | None = None
    """The configuration beside `resources` and `refused`; None if that is not certain (P6)."""


async def select(
    discovery: Discovery,
    selections: Sequence[Selection],
    deny: Iterable[str],
    *,
    secrets: bool = False,
) -> SelectionResult:
    """Resolve the selections; discovery must have been refreshed before.

    `*` leaves out each resource that an entry names: so an entry may narrow what is watched of it.

    Args:
        discovery: what the API server serves.
        selections: the entries of the watch spec.
        deny: what `*` leaves out, as group/plural.
        secrets: whether Secrets may be watched; else they are refused (S1).

    Raises:
        KubeError: discovery is not available.
    """
    selected = SelectionResult(denied=frozenset(deny) if secrets else frozenset({*deny, SECRETS}))
    for selection in selections:
        if selection.resource != ALL:
            await _add_named(selected, discovery, selection, secrets=secrets)
    selected.denied |= {resource for resource, _ in selected.resources}
    for selection in selections:
        if selection.resource == ALL:
            _add(selected, _all_of(await discovery.resources(), selected.denied), selection)
    # Last: an unknown name may have refreshed the discovery.
    selected.served = frozenset(api.resource.key for api in await discovery.resources())
    selected.in_doubt = frozenset(name.rpartition("/")[0] for name in discovery.failed)
    return selected


def scope_hash(target: WatchTarget) -> str:
    """Return the name of a scope; empty when everything is watched."""
    if not target.namespace and not target.query:
        return ""
    narrowed = [target.namespace, target.label_selector, target.field_selector]
    return blake2b(orjson.dumps(narrowed), digest_size=6).hexdigest()


def _all_of(served: Iterable[ApiResource], deny: frozenset[str]) -> list[ApiResource]:
    apis: dict[str, ApiResource] = {}
    for api in served:
        key = api.resource.key
        is_denied = key in deny or api.resource.group in _NEVER_GROUPS
        if api.is_watchable and not is_denied and (api.preferred or key not in apis):
            apis[key] = api
    return list(apis.values())


async def _add_named(
    selected: SelectionResult, discovery: Discovery, selection: Selection, *, secrets: bool
) -> None:
    api = await discovery.by_name(selection.resource)
    if api is None:
        _refuse(selected, selection, NOT_FOUND, "the API server does not serve it")
    elif api.resource.key == SECRETS and not secrets:
        # S1: what is on the bus is kept for a day, and many consumers read it.
        _refuse(selected, selection, DENIED, "Secrets are not published")
    elif not api.is_watchable:
        _refuse(selected, selection, "NotWatchable", "the API server cannot list and watch it")
    else:
        _add(selected, [api], selection)


def _add(selected: SelectionResult, apis: Iterable[ApiResource], selection: Selection) -> None:
    for api in apis:
        namespaces = selection.namespaces if api.namespaced else ()
        fields = selection.field_selector
        fields = without_releases(fields) if api.resource.key == SECRETS else fields
        for namespace in namespaces or ("",):
            target = WatchTarget(api.resource, namespace, selection.label_selector, fields)
            resource = SelectedResource(api, target, scope_hash(target))
            selected.resources.setdefault(resource.key, resource)


def _refuse(selected: SelectionResult, selection: Selection, reason: str, message: str) -> None:
    name = parse_resource_name(selection.resource)[0]
    selected.refused.append(
        ResourceStatus(
            group=name.group or CORE,
            version=name.version or "",
            resource=name.plural,
            state="failing",
            reason=reason,
            message=f"{selection.resource}: {message}",
        )
    )
