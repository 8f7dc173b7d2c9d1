"""Another cluster answers under the name of one that is known (rule W13).

The watcher stops and refuses it, because everything of the old one would look deleted. It goes on
when somebody has consented to exactly that cluster.
"""

from __future__ import annotations

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.watchers.wanted import wake_watchers
from fleetbus_proto.keys import kv_accepted, kv_refused


async def refuse(kv: KeyValue, cluster: str, uid: str) -> None:
    """Tell which cluster answers, for whoever consents.

    Raises:
        BusError: it may not have been written.
    """
    if await read_refused(kv, cluster) != uid:
        await kv.put(kv_refused(cluster), uid.encode())


async def read_refused(kv: KeyValue, cluster: str) -> str:
    """The UID of kube-system of the cluster that is refused; empty if none is.

    Raises:
        BusError: nothing is known.
    """
    entry = await kv.get(kv_refused(cluster))
    return entry.value.decode(errors="replace") if entry is not None else ""


async def consent(bus: Bus, kv: KeyValue, cluster: str, uid: str) -> None:
    """Let the watchers take the cluster with this UID of kube-system for the one of that name.

    Consent to another UID than that of the cluster that answers changes nothing.

    Raises:
        BusError: it may not have been written.
    """
    await kv.put(kv_accepted(cluster), uid.encode())
    await wake_watchers(bus, cluster)


async def settle(kv: KeyValue, cluster: str) -> None:
    """The consent was used: it holds for that one change, and nobody is refused any more.

    Raises:
        BusError: the keys may still be there.
    """
    await kv.delete(kv_accepted(cluster))
    await kv.delete(kv_refused(cluster))
