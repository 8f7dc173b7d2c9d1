"""A cluster, resource or controller that nobody here knows: status 1, and what may be meant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from fleetbus.errors import ConfigError, FleetbusError

if TYPE_CHECKING:
    from fleetbus.bus.connection import Bus
    from fleetbus.cli.api_client import ApiClient

_SHOWN: Final = 10


class UnknownName(ConfigError):
    """Something was named that is not here; every command ends with status 1 and the message."""


def exit_status(error: FleetbusError) -> int:
    """1 for what is not here, 2 for what cannot be read."""
    return 1 if isinstance(error, UnknownName) else 2


def unknown(said: str, name: str, known: Collection[str]) -> UnknownName:
    """The error for a name that is not among those that are known.

    Args:
        said: the message, without a suggestion.
        name: what was typed.
        known: every name there is.
    """
    near = get_close_matches(name, known, n=1)
    if near:
        return UnknownName(f"{said}; do you mean {near[0]!r}?")
    names = sorted(known)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return UnknownName(f"{said}; there are: {', '.join(names[:_SHOWN]) or 'none'}{more}")


def unknown_cluster(name: str, known: Collection[str]) -> UnknownName:
    """The error for a cluster that is not in the fleet."""
    return unknown(f"cluster {name!r} is not in the fleet", name, known)


def require_clusters(api: ApiClient, names: Sequence[str]) -> None:
    """Refuse clusters that the query API does not know.

    Raises:
        UnknownName: there is one.
        ApiFailed: no answer.
    """
    if not names:
        return
    known = {str(item["name"]) for item in api.get("/fleet/v1/clusters")["items"]}
    for name in names:
        if name not in known:
            raise unknown_cluster(name, known)


async def bus_clusters(bus: Bus) -> set[str]:
    """The clusters of the fleet, as the projector has told the watchers.

    Raises:
        BusError: the bucket cannot be read.
    """
    from fleetbus.bus.key_scan import scan_keys  # noqa: PLC0415 -- import cost
    from fleetbus_proto.keys import KV_WATCH, kv_cluster  # noqa: PLC0415 -- import cost

    return {kv_cluster(key) for key in await scan_keys(bus, KV_WATCH)}


async def bus_resources(bus: Bus) -> set[str]:
    """The keys of the resources that any watcher has a checkpoint of, like `core/pods`.

    Raises:
        BusError: the bucket cannot be read.
    """
    from fleetbus.bus.key_scan import scan_pages  # noqa: PLC0415 -- import cost
    from fleetbus_proto.keys import KV_CHECKPOINTS, kv_checkpoint_resource  # noqa: PLC0415

    pages = scan_pages(bus, KV_CHECKPOINTS)
    return {kv_checkpoint_resource(key) async for page in pages for key in page}
