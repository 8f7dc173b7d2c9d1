"""Incarnation numbers and epoch ids, claimed by compare-and-set (rules W7, W13, W23)."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import structlog

from fleetbus.bus.key_value import Entry, KeyValue
from fleetbus.process.clock import now_ms
from fleetbus.watchers.cluster_consent import (
    clear_refusal,
    has_consent,
    parse_incarnation,
    record_refusal,
)
from fleetbus.watchers.resync import ResyncRequest, read_resync
from fleetbus_proto.admission import is_too_far_ahead
from fleetbus_proto.events import Incarnation
from fleetbus_proto.keys import kv_epoch, kv_incarnation
from fleetbus_proto.resources import Resource
from fleetbus_watcher.errors import ClusterReplaced

log = structlog.get_logger()

_NUMBER = re.compile(rb"[0-9]{1,20}")


async def read_incarnation(kv: KeyValue, cluster: str) -> Incarnation | None:
    """Read the record of a cluster; None if there is none that is valid and plausible.

    Raises:
        BusError: it could not be read.
    """
    record = _parse(await kv.get(kv_incarnation(cluster)))
    return record if record is not None and is_plausible(record.number) else None


async def has_moved(kv: KeyValue, cluster: str, incarnation: Incarnation) -> bool:
    """Whether another number than ours is current: a replica claimed it, or ours was lost.

    Raises:
        BusError: it could not be read.
    """
    record = _parse(await kv.get(kv_incarnation(cluster)))
    if record is not None and not is_plausible(record.number):
        return False  # every consumer refuses a watcher that uses that number
    return record != incarnation


async def claim_incarnation(kv: KeyValue, cluster: str, uid: str, highest: int) -> Incarnation:
    """Return the record of a cluster; claims a new one if the present one cannot be used.

    Args:
        kv: the bucket.
        cluster: the cluster's name.
        uid: the UID of kube-system that its API server has now.
        highest: the highest number that the projector has seen; a lower one would be dropped (P2).

    Raises:
        ClusterReplaced: the record names another UID, and no operator consented to this one.
        BusError: it could not be read or written.
    """
    while True:
        entry = await kv.get(kv_incarnation(cluster))
        record = _parse(entry)
        last = record.number if record is not None and is_plausible(record.number) else 0
        if record is not None and record.uid == uid and last and last >= highest:
            return record
        other = record.uid if record is not None and record.uid != uid else None
        if other is not None and not await has_consent(kv, cluster, uid, replaces=other):
            await record_refusal(kv, cluster, uid)
            raise ClusterReplaced(
                f"kube-system has UID {uid}, but {cluster!r} was {other}: another cluster"
                f" answers; to consent: fleetbus clusters accept {cluster} --uid {uid}"
            )
        claimed = Incarnation(max(now_ms(), last + 1, highest + 1), uid)
        value = msgspec.json.encode(claimed)
        if await compare_and_set(kv, kv_incarnation(cluster), value, entry):
            log.info("incarnation_claimed", cluster=cluster, number=claimed.number, uid=uid)
            if other is not None:
                await clear_refusal(kv, cluster)
            return claimed


async def highest_number(kv: KeyValue, cluster: str, resources: Iterable[Resource]) -> int:
    """Return the highest number that the projector has seen, by its resync requests; else 0.

    Raises:
        BusError: they could not be read.
    """
    requests = [await read_resync(kv, cluster, resource) for resource in set(resources)]
    return max((request.incarnation for request in requests if request), default=0)


async def claim_epoch(
    kv: KeyValue, cluster: str, resource: Resource, request: ResyncRequest | None
) -> int:
    """Claim an epoch id, higher than all before it, and high enough for the resync request.

    Raises:
        BusError: it could not be claimed.
    """
    key = kv_epoch(cluster, resource.group, resource.plural)
    floor = max(request.min_epoch, request.epoch + 1) if request else 0
    while True:
        entry = await kv.get(key)
        claimed = max(now_ms(), _last_epoch(entry) + 1, floor)
        if await compare_and_set(kv, key, str(claimed).encode(), entry):
            return claimed


def is_plausible(number: int) -> bool:
    """Whether consumers accept a number: not one that is more than a day ahead (rule B8).

    New numbers are based on plausible ones only, so that a clock that was wrong, or garbage in the
    bucket, does no lasting harm.
    """
    return not is_too_far_ahead(number, now_ms())


def is_dropped(number: int, request: ResyncRequest) -> bool:
    """Whether consumers drop what is published under this number, by a resync request."""
    return request.incarnation > number or request.refuses(number, now_ms())


async def compare_and_set(kv: KeyValue, key: str, value: bytes, entry: Entry | None) -> bool:
    """Write a key if it is still as it was found; False if another writer was first.

    Raises:
        BusError: it may not have been written.
    """
    return await kv.update(key, value, entry.revision if entry is not None else 0) is not None


def _last_epoch(entry: Entry | None) -> int:
    if entry is None or _NUMBER.fullmatch(entry.value) is None:
        return 0
    last = int(entry.value)
    return last if is_plausible(last) else 0


def _parse(entry: Entry | None) -> Incarnation | None:
    return parse_incarnation(entry.value) if entry is not None else None
