"""Runs `fleetbus doctor`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Final

from redis.exceptions import RedisError

from fleetbus.cli.doctor.clusters import check_clusters
from fleetbus.cli.doctor.findings import Finding, Severity, error
from fleetbus.cli.doctor.nats import check_nats
from fleetbus.cli.doctor.store import check_store
from fleetbus.cli.documents import render_json
from fleetbus.cli.nats import connect_nats
from fleetbus.cli.store import connect_store
from fleetbus.cli.table import render_table
from fleetbus.cli.target import resolve_target
from fleetbus.errors import BusError, StoreError
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.store import StoreAccess
from fleetbus.process.logs import set_up_logs
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.shards import find_shards

_HEAD: Final = ("", "ABOUT", "FINDING")
_SIGNS: Final = {Severity.OK: "ok", Severity.WARNING: "warn", Severity.ERROR: "ERROR"}


def run_doctor(output: str, *, nats_url: str | None, redis_url: str | None) -> int:
    """Check the fleet and print what was found; return the exit status, 1 after an error.

    Raises:
        ConfigError: an address is not set.
    """
    target = resolve_target(nats_url=nats_url, redis_url=redis_url)
    nats, store = target.require_nats(), target.require_store()
    set_up_logs("text", "error")  # every warning of a connection is a finding here
    findings = asyncio.run(_check(nats, store))
    _print(findings, output)
    return int(any(one.severity is Severity.ERROR for one in findings))


async def _check(nats: NatsAccess, store: StoreAccess) -> list[Finding]:
    on_bus, on_store = await asyncio.gather(_check_bus(nats), _check_store(store))
    return [*on_bus, *on_store]


async def _check_bus(access: NatsAccess) -> list[Finding]:
    found: list[Finding] = []
    try:
        async with connect_nats(access, name="fleetbus-doctor") as bus:
            await _collect(found, check_nats(bus))
    except BusError as e:
        found.append(_nats_fails(str(e)))
    return found


def _nats_fails(message: str) -> Finding:
    advice = "is it running, is the address right, and has this user all rights on JetStream?"
    return error("nats", message, advice)


async def _check_store(access: StoreAccess) -> list[Finding]:
    found: list[Finding] = []
    try:
        redis = await connect_store(access)
        async with redis:
            keys = await find_shards(redis)
            await _collect(found, check_store(redis, keys))
            await _collect(found, check_clusters(SnapshotReader(redis, keys)))
    except (StoreError, RedisError) as e:
        advice = "is it running, and are address and credentials right? See docs/store.md"
        found.append(error("store", str(e), advice))
    return found


async def _collect(found: list[Finding], checks: AsyncIterator[Finding]) -> None:
    """Add findings as they come: what was found before a failure counts."""
    async for one in checks:
        found.append(one)  # noqa: PERF401 -- an extension would lose them


def _print(findings: Sequence[Finding], output: str) -> None:
    if output == "json":
        print(render_json({"findings": [asdict(one) for one in findings]}))
        return
    print(render_table(_HEAD, [_row(one) for one in findings]))
    bad = [one for one in findings if one.severity is not Severity.OK]
    if not bad:
        print(f"{len(findings)} checks, nothing found", file=sys.stderr)


def _row(one: Finding) -> tuple[str, str, str]:
    said = f"{one.message}; {one.advice}" if one.advice else one.message
    return _SIGNS[one.severity], one.about, said
