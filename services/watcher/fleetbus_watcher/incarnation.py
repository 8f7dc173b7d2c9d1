"""Which cluster is behind the name, and which history of it (rules W7, W13, W23)."""

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
    """The record of a cluster; None if there is none that can be read and believed.

    Raises:
        BusError: nothing is known.
    """
    record = _parse(await kv.get(kv_incarnation(cluster)))
    return record if record is not None and is_believable(record.number) else None


async def has_moved(kv: KeyValue, cluster: str, ours: Incarnation) -> bool:
    """Whether another number than ours counts now: another replica claimed it, or ours was lost.

    Raises:
        BusError: nothing is known.
    """
    record = _parse(await kv.get(kv_incarnation(cluster)))
    if record is not None and not is_believable(record.number):
        return False  # whoever goes by that number is refused by everybody
    return record != ours


async def claim_incarnation(kv: KeyValue, cluster: str, uid: str, seen: int) -> Incarnation:
    """The record of a cluster, claimed by compare-and-set if there is none that will do.

    Args:
        kv: the bucket.
        cluster: the cluster's name.
        uid: the UID of kube-system that its API server has now.
        seen: the highest number that the projector has seen; a lower one would be dropped (P2).

    Raises:
        ClusterReplaced: the record names another UID, and no operator consented to this one.
        BusError: nothing is known.
    """
    while True:
        entry = await kv.get(kv_incarnation(cluster))
        record = _parse(entry)
        last = record.number if record is not None and is_believable(record.number) else 0
        if record is not None and record.uid == uid and last and last >= seen:
            return record
        other = record.uid if record is not None and record.uid != uid else None
        if other is not None and not await has_consent(kv, cluster, uid, replaces=other):
            await record_refusal(kv, cluster, uid)
            raise ClusterReplaced(
                f"kube-system has UID {uid}, but {cluster!r} was {other}: another cluster"
                f" answers; to consent: fleetbus clusters accept {cluster} --uid {uid}"
            )
        claimed = Incarnation(max(now_ms(), last + 1, seen + 1), uid)
        if await swap(kv, kv_incarnation(cluster), msgspec.json.encode(claimed), entry):
            log.info("incarnation_claimed", cluster=cluster, number=claimed.number, uid=uid)
            if other is not None:
                await clear_refusal(kv, cluster)
            return claimed


async def seen_incarnation(kv: KeyValue, cluster: str, resources: Iterable[Resource]) -> int:
    """The highest number that the projector has seen, as its wishes tell it; 0 if none does.

    Raises:
        BusError: nothing is known.
    """
    wishes = [await read_resync(kv, cluster, resource) for resource in set(resources)]
    return max((wish.incarnation for wish in wishes if wish), default=0)


async def claim_epoch(
    kv: KeyValue, cluster: str, resource: Resource, wanted: ResyncRequest | None
) -> int:
    """A new epoch id, larger than every one before, and than what is wanted.

    Raises:
        BusError: nothing is known.
    """
    key = kv_epoch(cluster, resource.group, resource.plural)
    floor = max(wanted.min_epoch, wanted.epoch + 1) if wanted else 0
    while True:
        entry = await kv.get(key)
        claimed = max(now_ms(), _last_epoch(entry) + 1, floor)
        if await swap(kv, key, str(claimed).encode(), entry):
            return claimed


def is_believable(number: int) -> bool:
    """Whether consumers take a number from the bucket; further ahead than a day they do not (B8).

    Who claims one goes on from a believable one only, so that a clock that was wrong, or whoever
    wrote nonsense there, does no lasting harm.
    """
    return not is_too_far_ahead(number, now_ms())


def is_dropped(number: int, wanted: ResyncRequest) -> bool:
    """Whether nobody takes what is published under this number, as a wish of the projector says."""
    return wanted.incarnation > number or wanted.refuses(number, now_ms())


async def swap(kv: KeyValue, key: str, value: bytes, found: Entry | None) -> bool:
    """Write a key that must still be as it was found; False if somebody was faster.

    Raises:
        BusError: it may not have been written.
    """
    return await kv.update(key, value, found.revision if found is not None else 0) is not None


def _last_epoch(entry: Entry | None) -> int:
    if entry is None or _NUMBER.fullmatch(entry.value) is None:
        return 0
    last = int(entry.value)
    return last if is_believable(last) else 0


def _parse(entry: Entry | None) -> Incarnation | None:
    return parse_incarnation(entry.value) if entry is not None else None
