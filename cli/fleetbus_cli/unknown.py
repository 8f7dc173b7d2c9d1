"""Reports unknown clusters, resources and controllers with the closest known name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from fleetbus.errors import CaptureError, ConfigError, FleetbusError
from fleetbus.process.close_names import close_names

if TYPE_CHECKING:
    from fleetbus.bus.connection import Bus
    from fleetbus_cli.api_client import ApiClient

_SHOWN: Final = 10


class UnknownName(ConfigError):
    """A name is unknown; every command prints the message and exits with status 1."""


def exit_status(error: FleetbusError) -> int:
    """Return 1 for an unknown name or an unusable capture, 2 for other bad input."""
    return 1 if isinstance(error, (UnknownName, CaptureError)) else 2


def unknown(message: str, name: str, candidates: Collection[str]) -> UnknownName:
    """Make the error for an unknown name.

    Args:
        message: the message, without a suggestion.
        name: what was typed.
        candidates: the names that exist.
    """
    near = close_names(name, candidates)
    if near:
        return UnknownName(f"{message}; did you mean {near[0]!r}?")
    names = sorted(candidates)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return UnknownName(f"{message}; known: {', '.join(names[:_SHOWN]) or 'none'}{more}")


def unknown_cluster(name: str, clusters: Collection[str]) -> UnknownName:
    """Make the error for a cluster that is not in the fleet."""
    return unknown(f"cluster {name!r} is not in the fleet", name, clusters)


def require_clusters(api: ApiClient, names: Sequence[str]) -> None:
    """Check that the query API knows these clusters.

    Raises:
        UnknownName: it does not know one of them.
        ApiFailed: it does not answer.
    """
    if not names:
        return
    clusters = {str(item["name"]) for item in api.get("/fleet/v1/clusters")["items"]}
    for name in names:
        if name not in clusters:
            raise unknown_cluster(name, clusters)


async def bus_clusters(bus: Bus) -> set[str]:
    """List the clusters of the fleet, as the projector announced them on NATS.

    Raises:
        BusError: the bucket cannot be read.
    """
    from fleetbus.bus.key_scan import scan_keys  # noqa: PLC0415 -- import cost
    from fleetbus_proto.keys import KV_WATCH, kv_cluster  # noqa: PLC0415 -- import cost

    return {kv_cluster(key) for key in await scan_keys(bus, KV_WATCH)}


async def bus_resources(bus: Bus) -> set[str]:
    """List the keys of the resources that some watcher has a checkpoint of, like `core/pods`.

    Raises:
        BusError: the bucket cannot be read.
    """
    from fleetbus.bus.key_scan import scan_pages  # noqa: PLC0415 -- import cost
    from fleetbus_proto.keys import KV_CHECKPOINTS, kv_checkpoint_resource  # noqa: PLC0415

    pages = scan_pages(bus, KV_CHECKPOINTS)
    return {kv_checkpoint_resource(key) async for page in pages for key in page}
