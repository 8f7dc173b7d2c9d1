"""Takes an edit of a cluster's access data as consent to the cluster behind it (rule W13).

The UID that the hub itself reads there also becomes the accepted one of a cluster of which nothing
is known, or only what its watcher reported.

Only joining and a change of the API server's address count. New credentials for the same address do
not, nor does another cluster behind the same address: that needs a person's consent. The address
for which this was done is kept in the bucket, so that it happens once, also over restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Final

import structlog
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError, FleetbusError
from fleetbus.kube.connection.config import server_of
from fleetbus.store.connection import StoreEmpty
from fleetbus.watchers.cluster_consent import consent, parse_incarnation
from fleetbus_proto.keys import KV_ACCESS, kv_access, kv_cluster, kv_incarnation
from fleetbus_reconciler.fleet_status.accepted_uids import AcceptedUids
from fleetbus_reconciler.for_each import for_each

log = structlog.get_logger()

_SERVICE_ACCOUNT: Final = "in-cluster"
_AGENT: Final = "agent"


class AccessConsents:
    """AccessConsents to the clusters that the access data of the registry lead to.

    Args:
        clusters: the registry.
        bus: to wake watchers.
        kv: the bucket.
        accepted: the accepted UIDs.
        retry: the pause before a member that did not answer is asked again.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        bus: Bus,
        kv: KeyValue,
        accepted: AcceptedUids,
        retry: timedelta,
    ) -> None:
        self._clusters = clusters
        self._bus = bus
        self._kv = kv
        self._accepted = accepted
        self._retry = retry
        self._changed = asyncio.Event()
        # Cluster → address for which nothing is left to do.
        self._settled: dict[str, str] = {}
        self._is_read = False
        clusters.on_change(self._changed.set)
        bus.on_reconnect(self.read_again)

    def read_again(self) -> None:
        """Read the bucket again, which may have been lost."""
        self._is_read = False
        self._changed.set()

    async def run(self) -> None:
        """Consent until cancelled; a cluster that does not answer is tried again."""
        while True:
            self._changed.clear()
            is_done = False
            try:
                is_done = await self._converge()
            except (BusError, RedisError, StoreEmpty) as e:
                log.warning("consents_not_read", error=str(e) or type(e).__name__)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if is_done else self._retry.total_seconds()):
                    await self._changed.wait()

    async def _converge(self) -> bool:
        """Whether every cluster is settled."""
        await self._clusters.known()
        if not self._is_read:
            await self._accepted.restore()
            await self._read()
            self._is_read = True
        accepted = await self._accepted.clusters()
        fleet = self._clusters.all()
        for name in (self._settled.keys() | accepted) - {info.name for info in fleet}:
            await self._kv.delete(kv_access(name))  # joining again is consent
            await self._accepted.forget(name)
            self._settled.pop(name, None)
        return all(await for_each(fleet, self._settle))

    async def _read(self) -> None:
        entries = await scan_keys(self._bus, KV_ACCESS)
        consents = {kv_cluster(k): e.value.decode(errors="replace") for k, e in entries.items()}
        # What was lost with the bucket stays done: another cluster may answer there by now.
        for name in self._settled.keys() - consents.keys():
            await self._kv.put(kv_access(name), self._settled[name].encode())
        self._settled.update(consents)

    async def _settle(self, info: ClusterInfo) -> bool:
        try:
            address, before = _address_of(info), self._settled.get(info.name)
            if before == address:
                return True
            uid = await self._clusters.client(info.name).kube_system_uid()
            is_other = not await self._accepted.verify(info.name, uid)
        except (FleetbusError, RedisError, StoreEmpty) as e:
            log.debug("consent_postponed", cluster=info.name, error=str(e) or type(e).__name__)
            return False
        entry = await self._kv.get(kv_incarnation(info.name))
        record = parse_incarnation(entry.value) if entry is not None else None
        if is_other or (record is not None and record.uid not in ("", uid)):
            if before is not None and _AGENT in (address, before):
                # Another way to the cluster is no address that somebody has chosen.
                log.warning("another_cluster_on_new_way", cluster=info.name, uid=uid, way=address)
                return False
            log.info("consent_by_access_data", cluster=info.name, uid=uid, server=address)
            await consent(self._bus, self._kv, info.name, uid)
        await self._kv.put(kv_access(info.name), address.encode())
        self._settled[info.name] = address
        return True


def _address_of(info: ClusterInfo) -> str:
    """The address of the access data, or the way to a cluster without any."""
    if info.access is ClusterAccess.AGENT:
        return _AGENT
    return server_of(info.config) if info.config is not None else _SERVICE_ACCOUNT
