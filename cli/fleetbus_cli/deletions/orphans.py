"""Runs `fleetbus orphans`: finds orphans in snapshot and hub, and deletes them live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from fleetbus.errors import BusError, ConfigError, FleetbusError, NotEngaged
from fleetbus.process import printer
from fleetbus.process.logs import set_up_logs
from fleetbus_cli.documents import render_json
from fleetbus_cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus_cli.table import render_table
from fleetbus_cli.target import resolve_target

if TYPE_CHECKING:
    from fleetbus.clusters.registry import Clusters
    from fleetbus.fleet.orphans import Orphan
    from fleetbus.kube.client import KubeClient
    from fleetbus.kube.connection.config import KubeConfig
    from fleetbus.process.access.store import StoreAccess
    from fleetbus.snapshot.reads.reader import SnapshotReader

_HEAD: Final = ("CLUSTER", "KIND", "NAMESPACE", "NAME", "OWNER", "UID")
_CLUSTERS_TIMEOUT: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connections:
    hub: KubeClient
    clusters: Clusters
    nats_url: str | None
    """That of the option, for clusters behind agents."""


def run_orphans(
    words: Sequence[str], *, output: str, hub: Hub, redis_url: str | None, nats_url: str | None
) -> int:
    """Show or delete orphans; return the exit status.

    Raises:
        ConfigError: an argument is invalid, or the hub or Redis is not set.
    """
    verb, *uids = words or ["show"]
    if verb not in {"show", "delete"} or bool(uids) != (verb == "delete"):
        raise ConfigError(
            "use `fleetbus orphans` to list them, `fleetbus orphans delete UID...` to delete some"
        )
    set_up_logs("text", "error")
    config = resolve_hub(hub)
    store = resolve_target(redis_url=redis_url).require_store()

    async def main() -> int:
        async with _connect(config, store) as (client, reader):
            from fleetbus.fleet.orphans import find_orphans  # noqa: PLC0415 -- import cost

            names = [record.name for record in await reader.clusters()]
            orphans = await find_orphans(reader, client, names)
            if not uids:
                return _show(orphans, output)
            async with _engage(config, reader) as clusters:
                connections = _Connections(hub=client, clusters=clusters, nats_url=nats_url)
                return await _delete(connections, orphans, uids)

    return run_on_hub(main())


@asynccontextmanager
async def _connect(
    hub: KubeConfig, store: StoreAccess
) -> AsyncGenerator[tuple[KubeClient, SnapshotReader]]:
    from fleetbus_cli.store import connect_store  # noqa: PLC0415 -- import cost

    redis = await connect_store(store)
    try:
        # after the store has answered: a command that cannot start says so at once
        from fleetbus.kube.client import KubeClient  # noqa: PLC0415 -- see above
        from fleetbus.snapshot.reads.reader import SnapshotReader  # noqa: PLC0415 -- see above
        from fleetbus.snapshot.shards import find_shards  # noqa: PLC0415 -- see above

        async with KubeClient(hub) as client:
            yield client, SnapshotReader(redis, await find_shards(redis))
    finally:
        await redis.aclose()


@asynccontextmanager
async def _engage(hub: KubeConfig, reader: SnapshotReader) -> AsyncGenerator[Clusters]:
    from fleetbus_cli.fleet import build_fleet  # noqa: PLC0415 -- only a deletion needs it

    clusters = build_fleet(hub, reader)
    try:
        yield clusters
    finally:
        await clusters.aclose()


def _show(orphans: Sequence[Orphan], output: str) -> int:
    if output == "json":
        printer.json_text(render_json({"orphans": [_describe(orphan) for orphan in orphans]}))
    elif not orphans:
        printer.line("No orphans found.")
    else:
        rows = [
            [
                orphan.cluster,
                orphan.kind,
                orphan.namespace,
                orphan.name,
                _owner_of(orphan),
                orphan.uid,
            ]
            for orphan in orphans
        ]
        printer.block(render_table(_HEAD, rows))
        printer.block(
            "\nA MultiClusterResource that renders an orphan adopts it again;"
            " `fleetbus orphans delete UID` deletes it."
        )
    return 0


def _owner_of(orphan: Orphan) -> str:
    return f"{orphan.owner.namespace}/{orphan.owner.name}"


def _describe(orphan: Orphan) -> Mapping[str, Any]:
    owner = orphan.owner
    return {
        "cluster": orphan.cluster,
        "resource": str(orphan.resource),
        "kind": orphan.kind,
        "namespace": orphan.namespace,
        "name": orphan.name,
        "uid": orphan.uid,
        "owner": {"namespace": owner.namespace, "name": owner.name, "uid": owner.uid},
    }


async def _delete(connections: _Connections, orphans: Sequence[Orphan], uids: Sequence[str]) -> int:
    by_uid = {orphan.uid: orphan for orphan in orphans}
    following = asyncio.create_task(connections.clusters.run(), name="clusters")
    try:
        async with asyncio.timeout(_CLUSTERS_TIMEOUT.total_seconds()):
            await connections.clusters.known()
        chosen = [by_uid[uid] for uid in uids if uid in by_uid]
        async with _calling_agents(connections, chosen):
            deleted = [await _delete_one(connections, by_uid.get(uid), uid) for uid in uids]
    except TimeoutError:
        printer.note("fleetbus: the clusters of the fleet are not known yet")
        return 1
    except BusError as e:
        printer.note(f"fleetbus: clusters with agents are not reached: {e}")
        return 1
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return int(not all(deleted))


@asynccontextmanager
async def _calling_agents(
    connections: _Connections, orphans: Sequence[Orphan]
) -> AsyncGenerator[None]:
    """Connect to the bus if an orphan is in a cluster behind an agent, and its address is set."""
    from fleetbus.clusters.info import ClusterAccess  # noqa: PLC0415 -- import cost
    from fleetbus_cli.fleet import calling_agents  # noqa: PLC0415 -- import cost

    clusters = connections.clusters
    infos = [clusters.get(orphan.cluster) for orphan in orphans]
    target = resolve_target(nats_url=connections.nats_url)
    async with AsyncExitStack() as stack:
        bus, caller = None, ""
        if target.nats_url and any(info and info.access is ClusterAccess.AGENT for info in infos):
            from fleetbus_cli.nats import agent_caller, connect_nats  # noqa: PLC0415 -- import cost

            access = target.require_nats()
            bus = await stack.enter_async_context(connect_nats(access, name="fleetbus-orphans"))
            caller = agent_caller(access)
        await stack.enter_async_context(calling_agents(clusters, bus, caller=caller))
        yield


async def _delete_one(connections: _Connections, orphan: Orphan | None, uid: str) -> bool:
    from fleetbus.fleet.orphans import delete_orphan  # noqa: PLC0415 -- import cost

    if orphan is None:
        printer.note(f"fleetbus: no orphan has UID {uid!r}")
        return False
    try:
        info = connections.clusters.get(orphan.cluster)
        if info is not None and info.suspended:
            raise NotEngaged(f"cluster {orphan.cluster!r} is suspended")
        client = connections.clusters.client(orphan.cluster)
        was_there = await delete_orphan(orphan, client=client, hub=connections.hub)
    except FleetbusError as e:
        printer.note(f"fleetbus: cannot delete {orphan}: {e}")
        return False
    printer.line(f"{'deleted' if was_there else 'already gone:'} {orphan}")
    return True
