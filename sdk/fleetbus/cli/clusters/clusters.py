"""Runs `fleetbus clusters`: prints the clusters of the fleet."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from fleetbus.cli.api_client import ApiClient, ApiFailed
from fleetbus.cli.documents import render_json
from fleetbus.cli.table import render_table
from fleetbus.cli.target import ApiFlags
from fleetbus.kube.json_fields import pairs
from fleetbus.process.human_time import render_duration

_HEAD: Final = (
    *("NAME", "HUB", "CONNECTED", "VERSION", "RESOURCES", "LAST ANSWER", "REASON", "LABELS"),
)
_ANSWERED_WITHIN_SECONDS: Final = 30


def show_clusters(output: str, flags: ApiFlags) -> int:
    """Print the clusters of the fleet; return the exit status.

    Raises:
        ConfigError: no query API address is set.
    """
    api = ApiClient(flags.resolve())
    try:
        answer = api.get("/fleet/v1/clusters")
    except ApiFailed as e:
        print(f"fleetbus: {e}", file=sys.stderr)
        return 1
    if output == "json":
        print(render_json(answer))
        return 0
    freshness: Mapping[str, Any] = answer["freshness"]
    print(render_table(_HEAD, [_row(item, freshness[item["name"]]) for item in answer["items"]]))
    if not answer["items"]:
        print("No clusters in the fleet.", file=sys.stderr)
    return 0


def _row(cluster: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    age = known["ageSeconds"]
    return [
        cluster["name"],
        "yes" if cluster["hub"] else "no",
        _connected(cluster, age),
        cluster["serverVersion"] or "<unknown>",
        f"{cluster['completeResourceCount']}/{cluster['resourceCount']}",
        "never" if age is None else f"{render_duration(age)} ago",
        _reason(known["reason"], cluster["message"]),
        pairs(cluster, "labels"),
    ]


def _reason(freshness: str, message: str) -> str:
    """Combine the reason for staleness with the watcher's message, which is often the same."""
    found = [freshness, "" if message == freshness else message]
    return "; ".join(filter(None, found)) or "-"


def _connected(cluster: Mapping[str, Any], age: float | None) -> str:
    """Show `unknown` if the watcher's last report is too old to rely on (rule A4)."""
    if cluster["connected"] and (age is None or age > _ANSWERED_WITHIN_SECONDS):
        return "unknown"
    return "yes" if cluster["connected"] else "no"
