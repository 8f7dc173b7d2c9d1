"""Looks for new trouble on the clusters of a wave: Warning events and restarts (gate `quiet`).

Only what concerns the workloads of the MultiClusterResource counts: the object itself, or one whose
name begins with its name, as those of its ReplicaSets and Pods do. A neighbour with such a name is
taken for one of them, which can only delay a wave. What was there before is known by a digest per
cluster, so no clock of a cluster matters. What a cluster answers is read inside its own guard: an
odd answer delays the wave that it is in, and ends no round.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog

from fleetbus.errors import FleetbusError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.json_fields import first_maps, many, mapping, number, string
from fleetbus.process.redact import cut
from fleetbus_distributor.fleet_view import TargetClients
from fleetbus_distributor.hub.rollout_state import GateState
from fleetbus_distributor.plan.intent import Inventory
from fleetbus_distributor.rollout.advance import Finding

log = structlog.get_logger()

_TIMEOUT: Final = timedelta(seconds=10)
_IN_FLIGHT: Final = 10
_MAX_SHOWN: Final = 160
_LONGEST_NAME: Final = 253
_MAX_KEYS: Final = 50
"""Keys of one cluster: with more trouble than that, every look finds something new."""


@dataclass(frozen=True, slots=True)
class _Trouble:
    """The trouble on one cluster: a key of each, and a sentence about it."""

    found: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The keys, cut: what is not among them later is new, what has expired is not."""
        return " ".join(sorted(map(_short, self.found))[:_MAX_KEYS])


async def look(
    clients: TargetClients, inventory: Inventory, clusters: Collection[str], seen: Mapping[str, str]
) -> Finding:
    """Look for new trouble.

    Args:
        clients: read the clusters, with the rights that count there (rule D16).
        inventory: our objects there.
        clusters: where to look.
        seen: what is known: cluster → digest.
    """
    slots = asyncio.Semaphore(_IN_FLIGHT)

    async def one(name: str) -> _Trouble:
        async with slots, asyncio.timeout(_TIMEOUT.total_seconds()):
            return await _look_at(clients(name), _families(inventory.get(name, {})))

    names = sorted(clusters)
    results = await asyncio.gather(*map(one, names), return_exceptions=True)
    troubles: dict[str, _Trouble] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, _Trouble):
            troubles[name] = result
        elif isinstance(result, Exception):
            if not isinstance(result, FleetbusError | TimeoutError):
                # An answer that no API server should give: the other clusters go on.
                log.error("quiet_gate_failed", cluster=name, exc_info=result)
            why = f"{name}: its Warning events and Pods cannot be read ({type(result).__name__})"
            return Finding(GateState.PENDING, why)
        else:
            raise result
    digests = {name: trouble.digest for name, trouble in troubles.items()}
    news = [
        f"{name}: {text}"
        for name, trouble in troubles.items()
        for key, text in sorted(trouble.found.items())
        if _short(key) not in seen.get(name, "").split()
    ]
    message = cut(f"last trouble: {news[0]}", _MAX_SHOWN) if news else ""
    return Finding(GateState.PENDING, message, digests, is_news=bool(news))


def _short(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:8]


def _families(entries: Mapping[Any, Any]) -> dict[str, set[str]]:
    """Namespace → names of our objects."""
    families: dict[str, set[str]] = {}
    for owned in entries.values():
        families.setdefault(owned.ref.namespace, set()).add(owned.ref.name)
    return families


async def _look_at(client: KubeClient, families: Mapping[str, set[str]]) -> _Trouble:
    troubles: dict[str, str] = {}
    for namespace, names in sorted(families.items()):
        events = await client.list("v1/events", namespace, field_selector="type=Warning")
        troubles |= dict(warnings(events, names))
        troubles |= dict(restarts(await client.list("v1/pods", namespace), names))
    return _Trouble(troubles)


def warnings(events: object, names: Collection[str]) -> Iterable[tuple[str, str]]:
    """A key and a sentence for each Warning event about an object of ours."""
    for event in many(events):
        about = mapping(event, "involvedObject")
        name = string(about, "name")
        if _is_family(name, names):
            # The text of an event may quote values: only its reason is shown (rule D14).
            count = number(event, "series", "count") or number(event, "count", default=1)
            key = f"{string(mapping(event.get('metadata')).get('uid'))}/{count}"
            yield key, f"{string(about.get('kind'))} {name}: {string(event.get('reason'))}"


def restarts(pods: object, names: Collection[str]) -> Iterable[tuple[str, str]]:
    """A key and a sentence for each container of ours that was restarted."""
    for pod in many(pods):
        metadata = mapping(pod, "metadata")
        name = string(metadata, "name")
        if not _is_family(name, names):
            continue
        for container in first_maps(pod, "status", "containerStatuses"):
            if count := number(container, "restartCount"):
                key = f"{string(metadata.get('uid'))}/{string(container.get('name'))}/{count}"
                yield key, f"Pod {name}: restarted"


def _is_family(name: str, names: Collection[str]) -> bool:
    """Whether it is a name, or begins with one and a dash; a look-up for each dash in it."""
    return name in names or any(
        name[:at] in names for at, letter in enumerate(name[:_LONGEST_NAME]) if letter == "-"
    )
