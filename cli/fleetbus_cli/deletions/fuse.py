"""Runs `fleetbus fuse` on the hub and Redis themselves, so it works while every service is down."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from fleetbus.deletions.held import FLEET_BUDGET, Held, find_held
from fleetbus.errors import ConfigError, KubeError, StoreError
from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION, MULTI_CLUSTER_RESOURCES
from fleetbus.process import printer
from fleetbus.process.close_names import close_names
from fleetbus_cli.documents import render_json
from fleetbus_cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus_cli.table import render_table
from fleetbus_cli.target import resolve_target

if TYPE_CHECKING:
    from fleetbus.deletions.budget import DeletionBudget
    from fleetbus.kube.client import KubeClient, Object
    from fleetbus.process.access.store import StoreAccess

_HEAD: Final = ("NAMESPACE", "NAME", "OBJECTS", "CLUSTERS", "REASON", "PLAN")
_NAMED: Final = 3


def run_fuse(words: Sequence[str], *, output: str, hub: Hub, redis_url: str | None) -> int:
    """Show, confirm or release; return the exit status.

    Raises:
        ConfigError: an argument is invalid, or the hub or Redis is not set.
    """
    verb, *names = words or ["show"]
    _check(verb, names)
    config = resolve_hub(hub)
    target = resolve_target(redis_url=redis_url)
    store = None if verb == "confirm" else target.require_store()

    async def main() -> int:
        from fleetbus.kube.client import KubeClient  # noqa: PLC0415 -- import cost

        async with KubeClient(config) as client:
            if store is None:
                return await _confirm_named(client, names)
            if verb == "release":
                return await _release(client, store)
            return await _show(client, store, output)

    return run_on_hub(main())


def _check(verb: str, names: Sequence[str]) -> None:
    if verb not in {"show", "confirm", "release"}:
        raise ConfigError(
            f"{verb!r} is neither confirm nor release: `fleetbus fuse` shows what is held,"
            " `fleetbus fuse confirm NAMESPACE/NAME` confirms its deletion"
        )
    if verb == "confirm" and not names:
        raise ConfigError("nothing to confirm: use `fleetbus fuse confirm NAMESPACE/NAME`")
    if verb != "confirm" and names:
        raise ConfigError(
            f"unexpected argument {names[0]!r}: `fleetbus fuse {verb}` takes no names"
        )
    for name in names:
        parts = name.split("/")
        if len(parts) != len(("namespace", "name")) or not all(parts):
            raise ConfigError(f"{name!r} is not NAMESPACE/NAME")


async def _show(client: KubeClient, store: StoreAccess, output: str) -> int:
    resources = await client.list(MULTI_CLUSTER_RESOURCES)
    from fleetbus.deletions.budget import (  # noqa: PLC0415 -- redis, once the hub has answered
        WINDOW,
        allowance,
        objects_on_record,
    )

    deletions = find_held(resources)
    budget = {
        "used": await _used(store),
        "allowed": allowance(
            sum(objects_on_record(resource.get("status") or {}) for resource in resources)
        ),
        "windowSeconds": int(WINDOW.total_seconds()),
    }
    document = {"budget": budget, "held": [deletion.describe() for deletion in deletions]}
    if output == "json":
        printer.json_text(render_json(document))
    else:
        printer.block(_render(budget, deletions))
    return 0


async def _used(store: StoreAccess) -> int | None:
    """Read the budget; None if Redis is away: what is held is on the hub."""
    try:
        async with _budget(store) as budget:
            return await budget.used()
    except StoreError as e:
        printer.note(f"fleetbus: {e}")
        return None


@asynccontextmanager
async def _budget(store: StoreAccess) -> AsyncGenerator[DeletionBudget]:
    from fleetbus.deletions.budget import DeletionBudget  # noqa: PLC0415 -- import cost
    from fleetbus_cli.store import connect_store  # noqa: PLC0415 -- import cost

    redis = await connect_store(store)
    try:
        yield DeletionBudget(redis)
    finally:
        await redis.aclose()


def _render(budget: Mapping[str, Any], deletions: Sequence[Held]) -> str:
    used = "unknown" if budget["used"] is None else budget["used"]
    minutes = budget["windowSeconds"] // 60
    line = (
        f"Deletions in the fleet that no edit requested: {used} of {budget['allowed']} allowed"
        f" in {minutes} min."
    )
    if not deletions:
        return f"{line}\nNo deletions are held."
    rows = [_row(deletion) for deletion in deletions]
    hints = ["`fleetbus fuse confirm NAMESPACE/NAME` confirms its held deletions."]
    if any(deletion.reason == FLEET_BUDGET for deletion in deletions):
        hints.append("`fleetbus fuse release` confirms all deletions that the fleet budget holds.")
    return "\n\n".join([line, render_table(_HEAD, rows), "\n".join(hints)])


def _row(deletion: Held) -> list[str]:
    more = len(deletion.clusters) - _NAMED
    named = ",".join(deletion.clusters[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    plan = f"{deletion.plan_hash} (confirmed)" if deletion.is_confirmed else deletion.plan_hash
    return [deletion.namespace, deletion.name, str(deletion.objects), named, deletion.reason, plan]


async def _confirm_named(client: KubeClient, names: Sequence[str]) -> int:
    resources = {
        f"{resource['metadata']['namespace']}/{resource['metadata']['name']}": resource
        for resource in await client.list(MULTI_CLUSTER_RESOURCES)
    }
    confirmed = [await _confirm_one(client, name, resources) for name in names]
    return int(not all(confirmed))


async def _confirm_one(client: KubeClient, name: str, resources: Mapping[str, Object]) -> bool:
    if name not in resources:
        near = close_names(name, resources)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        printer.note(f"fleetbus: no MultiClusterResource {name!r}{hint}")
        return False
    deletion = Held.of(resources[name])
    if deletion is None:
        printer.note(f"fleetbus: {name} has no held deletions")
        return False
    return await _confirm(client, deletion)


async def _confirm(client: KubeClient, deletion: Held) -> bool:
    change = {"metadata": {"annotations": {CONFIRM_PRUNE_ANNOTATION: deletion.plan_hash}}}
    try:
        await client.patch(MULTI_CLUSTER_RESOURCES, deletion.namespace, deletion.name, change)
    except KubeError as e:
        printer.note(f"fleetbus: {deletion} cannot be confirmed: {e}")
        return False
    where = f"{len(deletion.clusters)} cluster{'' if len(deletion.clusters) == 1 else 's'}"
    printer.line(
        f"confirmed {deletion}: {deletion.objects} objects on {where}, plan {deletion.plan_hash}"
    )
    return True


async def _release(client: KubeClient, store: StoreAccess) -> int:
    chosen = [
        deletion
        for deletion in find_held(await client.list(MULTI_CLUSTER_RESOURCES))
        if deletion.reason == FLEET_BUDGET
    ]
    confirmed = [await _confirm(client, deletion) for deletion in chosen]
    async with _budget(store) as budget:
        await budget.refill()
    printer.line("the fleet budget is reset")
    return int(not all(confirmed))
