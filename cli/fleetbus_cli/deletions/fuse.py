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

    held = find_held(resources)
    budget = {
        "used": await _used(store),
        "allowed": allowance(sum(objects_on_record(one.get("status") or {}) for one in resources)),
        "windowSeconds": int(WINDOW.total_seconds()),
    }
    shown = {"budget": budget, "held": [one.describe() for one in held]}
    if output == "json":
        printer.json_text(render_json(shown))
    else:
        printer.block(_render(budget, held))
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


def _render(budget: Mapping[str, Any], held: Sequence[Held]) -> str:
    used = "unknown" if budget["used"] is None else budget["used"]
    minutes = budget["windowSeconds"] // 60
    line = (
        f"Deletions in the fleet that no edit asked for: {used} of {budget['allowed']} allowed"
        f" in {minutes} min."
    )
    if not held:
        return f"{line}\nNothing is held."
    rows = [_row(one) for one in held]
    hints = ["`fleetbus fuse confirm NAMESPACE/NAME` confirms what it holds."]
    if any(one.reason == FLEET_BUDGET for one in held):
        hints.append("`fleetbus fuse release` confirms everything that the fleet budget holds.")
    return "\n\n".join([line, render_table(_HEAD, rows), "\n".join(hints)])


def _row(held: Held) -> list[str]:
    more = len(held.clusters) - _NAMED
    named = ",".join(held.clusters[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    plan = f"{held.plan_hash} (confirmed)" if held.is_confirmed else held.plan_hash
    return [held.namespace, held.name, str(held.objects), named, held.reason, plan]


async def _confirm_named(client: KubeClient, names: Sequence[str]) -> int:
    resources = {
        f"{one['metadata']['namespace']}/{one['metadata']['name']}": one
        for one in await client.list(MULTI_CLUSTER_RESOURCES)
    }
    confirmed = [await _confirm_one(client, name, resources) for name in names]
    return int(not all(confirmed))


async def _confirm_one(client: KubeClient, name: str, resources: Mapping[str, Object]) -> bool:
    if name not in resources:
        near = close_names(name, resources)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        printer.note(f"fleetbus: no MultiClusterResource {name!r}{hint}")
        return False
    held = Held.of(resources[name])
    if held is None:
        printer.note(f"fleetbus: {name} holds nothing")
        return False
    return await _confirm(client, held)


async def _confirm(client: KubeClient, held: Held) -> bool:
    change = {"metadata": {"annotations": {CONFIRM_PRUNE_ANNOTATION: held.plan_hash}}}
    try:
        await client.patch(MULTI_CLUSTER_RESOURCES, held.namespace, held.name, change)
    except KubeError as e:
        printer.note(f"fleetbus: {held} cannot be confirmed: {e}")
        return False
    where = f"{len(held.clusters)} cluster{'' if len(held.clusters) == 1 else 's'}"
    printer.line(f"confirmed {held}: {held.objects} objects on {where}, plan {held.plan_hash}")
    return True


async def _release(client: KubeClient, store: StoreAccess) -> int:
    chosen = [
        one
        for one in find_held(await client.list(MULTI_CLUSTER_RESOURCES))
        if one.reason == FLEET_BUDGET
    ]
    confirmed = [await _confirm(client, one) for one in chosen]
    async with _budget(store) as budget:
        await budget.refill()
    printer.line("the fleet budget is reset")
    return int(not all(confirmed))
