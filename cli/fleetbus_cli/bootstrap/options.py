"""Options of a join with limited accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from fleetbus.clusters.account_tokens import DEFAULT_LIFETIME
from fleetbus.clusters.leaving import NAMESPACE

RELEASE: Final = "fleetbus"
"""The namespace of the chart's release, by default."""


@dataclass(frozen=True, slots=True)
class HubPlaces:
    """Namespaces on the hub."""

    namespace: str = NAMESPACE
    """Namespace of the kubeconfigs and the leave records."""
    release: str = RELEASE
    """Namespace of the watchers: their own kubeconfigs are mounted from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOptions:
    """Options of a join; None keeps what an earlier join of the cluster chose."""

    places: HubPlaces = HubPlaces()
    watched: Sequence[str] | None = None
    """Resources to watch, as people write them; at first `*`, all that are served now."""
    written: Sequence[str] | None = None
    """Resources that the distributor and controllers may write; at first none."""
    impersonated: Sequence[str] | None = None
    """ServiceAccounts whose rights a MultiClusterResource may use, as NAMESPACE/NAME (rule D16); at
    first none."""
    pool: bool | None = None
    """Whether the pool watches the cluster; at first a watcher of its own does."""
    server: str = ""
    """Another address of the API server, as the hub reaches it; empty for the administrator's."""
    lifetime: timedelta = DEFAULT_LIFETIME
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    insecure: bool = False
    http: bool = False
    check: bool = True
    """Connect with the limited accounts before they are stored."""
