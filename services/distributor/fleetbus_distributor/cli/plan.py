"""Runs `fleetbus plan`."""

from __future__ import annotations

import asyncio
import pathlib
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from fleetbus.errors import BusError, ConfigError
from fleetbus.kube.manifest_yaml import read_documents
from fleetbus.process import printer
from fleetbus.process.file_errors import file_problem
from fleetbus.process.logs import set_up_logs
from fleetbus_cli.documents import render_json
from fleetbus_cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus_cli.target import resolve_target
from fleetbus_distributor.kind import API_VERSION, KIND

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.bus.connection import Bus
    from fleetbus.clusters.registry import Clusters
    from fleetbus.kube.client import Object
    from fleetbus.kube.connection.config import KubeConfig
    from fleetbus.process.access.store import StoreAccess
    from fleetbus_distributor.preview.preview import Preview

_CLUSTERS_TIMEOUT: Final = timedelta(seconds=15)
_NOTHING, _ERROR, _CHANGES = 0, 1, 2


def run_plan(
    name: str | None,
    file: pathlib.Path | None,
    namespace: str,
    *,
    output: str,
    hub: Hub,
    redis_url: str | None,
    nats_url: str | None,
) -> int:
    """Plan and print; return the exit status.

    Raises:
        ConfigError: an argument or the file is wrong, or the hub is not set.
        UnknownName: no MultiClusterResource has this name.
    """
    if (name is None) == (file is None):
        raise ConfigError("give the NAME of a MultiClusterResource, or a manifest with -f FILE")
    if name is not None and (name.endswith((".yaml", ".yml", ".json")) or "/" in name):
        raise ConfigError(
            f"{name}: not the NAME of a MultiClusterResource; for a file write -f {name},"
            " for a namespace -n NAMESPACE"
        )
    manifests = read_manifests(file, namespace) if file is not None else []
    set_up_logs("text", "error")
    config = resolve_hub(hub)

    async def main() -> int:
        async with (
            _connect(config, redis_url) as (clusters, redis),
            _bus(nats_url) as (bus, caller),
        ):
            from fleetbus_cli.fleet import calling_agents  # noqa: PLC0415 -- cost
            from fleetbus_distributor.cli.planner import build_planner  # noqa: PLC0415 -- cost

            planner = await build_planner(clusters, redis, bus)
            async with calling_agents(clusters, bus, caller=caller):
                if name is not None:
                    plans = [await planner.plan_name(namespace, name)]
                else:
                    plans = [await planner.plan_manifest(manifest) for manifest in manifests]
        return _print(plans, planner.unknown(), output)

    try:
        return run_on_hub(main())
    except BusError as e:
        printer.note(f"fleetbus: neither votes on gates nor clusters with agents are reached: {e}")
        return _ERROR


def _print(plans: Sequence[Preview], notes: Sequence[str], output: str) -> int:
    from fleetbus_distributor.cli.plan_text import describe, print_plan  # noqa: PLC0415 -- cost

    if output == "json":
        printer.json_text(render_json({"plans": [describe(plan) for plan in plans]}))
    else:
        for number, plan in enumerate(plans):
            if number:
                printer.line()
            print_plan(plan)
    for note in notes:
        printer.note(f"note: {note}")
    if any(plan.has_errors for plan in plans):
        return _ERROR
    return _CHANGES if any(plan.has_changes for plan in plans) else _NOTHING


@asynccontextmanager
async def _bus(nats_url: str | None) -> AsyncGenerator[tuple[Bus | None, str]]:
    """The bus, if one is set, and the name by which agents are called: it has the votes, too."""
    target = resolve_target(nats_url=nats_url)
    if not target.nats_url:
        yield None, ""
        return
    from fleetbus_cli.nats import agent_caller, connect_nats  # noqa: PLC0415 -- import cost

    access = target.require_nats()
    async with connect_nats(access, name="fleetbus-plan") as bus:
        yield bus, agent_caller(access)


@asynccontextmanager
async def _connect(
    hub: KubeConfig, redis_url: str | None
) -> AsyncGenerator[tuple[Clusters, Redis | None]]:
    """The fleet, and the store if one is set; without it any cluster that answers is accepted."""
    target = resolve_target(redis_url=redis_url)
    redis = await _connect_store(target.require_store()) if target.redis_url else None
    clusters = await _fleet(hub, redis)
    following = asyncio.create_task(clusters.run(), name="clusters")
    try:
        try:
            async with asyncio.timeout(_CLUSTERS_TIMEOUT.total_seconds()):
                await clusters.known()
        except TimeoutError as e:
            raise ConfigError(
                "the clusters of the fleet cannot be read: the hub does not answer"
            ) from e
        yield clusters, redis
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await clusters.aclose()
        if redis is not None:
            await redis.aclose()


async def _connect_store(access: StoreAccess) -> Redis:
    from fleetbus_cli.store import connect_store  # noqa: PLC0415 -- import cost

    return await connect_store(access)


async def _fleet(hub: KubeConfig, redis: Redis | None) -> Clusters:
    # after the store has answered: a command that cannot start says so at once
    from fleetbus.snapshot.reads.reader import SnapshotReader  # noqa: PLC0415 -- see above
    from fleetbus.snapshot.shards import find_shards  # noqa: PLC0415 -- see above
    from fleetbus_cli.fleet import build_fleet  # noqa: PLC0415 -- see above

    reader = None if redis is None else SnapshotReader(redis, await find_shards(redis))
    return build_fleet(hub, reader)


def read_manifests(file: pathlib.Path, namespace: str) -> list[Object]:
    """Read the MultiClusterResources of a file; `-` is standard input.

    Args:
        file: YAML or JSON, with any number of documents.
        namespace: of those that name none.

    Raises:
        ConfigError: it cannot be read, or has something else in it.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{file}: cannot be read: {file_problem(e)}") from e
    try:
        documents = read_documents(text)
    except ValueError as e:
        raise ConfigError(f"{file}: {e}") from e
    if not documents:
        raise ConfigError(f"{file}: there is no {KIND} in it")
    return [
        _checked(document, f"{file}, document {n}", namespace)
        for n, document in enumerate(documents, 1)
    ]


def _checked(document: Any, where: str, namespace: str) -> Object:
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: not an object")
    document = cast("Object", document)
    if (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        kind = f"{document.get('kind')} of {document.get('apiVersion')}"
        raise ConfigError(f"{where}: {kind} is not a {KIND} of {API_VERSION}")
    metadata: Any = document.get("metadata")
    if not isinstance(metadata, dict) or not cast("Object", metadata).get("name"):
        raise ConfigError(f"{where}: metadata.name is missing")
    fields = cast("Object", metadata)
    for field in ("name", "namespace"):
        if not isinstance(fields.get(field) or "", str):
            raise ConfigError(f"{where}: metadata.{field} is not a string: quote it")
    return {**document, "metadata": {**fields, "namespace": fields.get("namespace") or namespace}}
