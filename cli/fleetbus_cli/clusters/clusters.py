"""Runs `fleetbus clusters`: prints the clusters of the fleet."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fleetbus.kube.json_fields import pairs
from fleetbus.process import printer
from fleetbus.process.human_time import render_age, render_duration
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.documents import render_json
from fleetbus_cli.table import render_table
from fleetbus_cli.target import ApiFlags
from fleetbus_cli.unknown import require_clusters

_HEAD: Final = (
    *("NAME", "HUB", "ACCESS", "CONNECTED", "VERSION", "RESOURCES", "LAST ANSWER"),
    *("LAST CONTACT", "REASON", "LABELS"),
)
_RESOURCES: Final = ("RESOURCE", "APIVERSION", "OBJECTS", "STATE", "REASON")
_LABEL: Final = 14
"""Characters of the names of details."""
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
        printer.note(f"fleetbus: {e}")
        return 1
    if output == "json":
        printer.json_text(render_json(answer))
        return 0
    freshness: Mapping[str, Any] = answer["freshness"]
    printer.block(
        render_table(_HEAD, [_row(item, freshness[item["name"]]) for item in answer["items"]])
    )
    if not answer["items"]:
        printer.note("No clusters in the fleet.")
    return 0


def show_cluster(name: str, output: str, flags: ApiFlags) -> int:
    """Print one cluster and its resources; return the exit status.

    Raises:
        ConfigError: no query API address is set.
        UnknownName: no cluster has this name.
    """
    api = ApiClient(flags.resolve())
    try:
        cluster = _read_cluster(api, name)
    except ApiFailed as e:
        printer.note(f"fleetbus: {e}")
        return 1
    if output == "json":
        printer.json_text(render_json(cluster))
        return 0
    for label, value in _details(cluster, cluster["freshness"][cluster["name"]]):
        printer.line(f"{label + ':':<{_LABEL}}{value or '-'}")
    if cluster["resources"]:
        printer.line()
        printer.block(render_table(_RESOURCES, list(map(_resource_row, cluster["resources"]))))
    if uncounted := cluster.get("uncountedResourceCount"):
        printer.note(f"fleetbus: the objects of {uncounted} resources were not counted")
    return 0


def _read_cluster(api: ApiClient, name: str) -> dict[str, Any]:
    """Read one cluster; if there is none, the error names a close one that the user may see."""
    try:
        return api.get(f"/fleet/v1/clusters/{urllib.parse.quote(name, safe='')}")
    except ApiFailed as e:
        if e.status == HTTPStatus.NOT_FOUND:
            require_clusters(api, [name])
        raise


def _details(cluster: Mapping[str, Any], freshness: Mapping[str, Any]) -> list[tuple[str, str]]:
    age = freshness["ageSeconds"]
    return [
        ("Name", cluster["name"]),
        ("Hub", "yes" if cluster["hub"] else "no"),
        ("Connected", _connected(cluster, age)),
        ("Reason", _reason(freshness["reason"], cluster["message"])),
        ("Last answer", "never" if age is None else f"{render_duration(age)} ago"),
        ("Access", cluster.get("access", "Direct")),
        *_agent_details(cluster.get("agent")),
        ("Version", cluster["serverVersion"]),
        ("Platform", cluster["platform"]),
        ("Address", cluster["host"]),
        ("Provider", cluster["provider"]),
        ("Joined", cluster["joinedAt"]),
        ("Labels", pairs(cluster, "labels")),
        ("Resources", f"{cluster['completeResourceCount']} of {cluster['resourceCount']} complete"),
    ]


def _resource_row(resource: Mapping[str, Any]) -> list[str]:
    group, version = resource["group"], resource["version"]
    objects = resource["objects"]
    return [
        resource["plural"],
        version if group == "core" else f"{group}/{version}",
        "-" if objects is None else str(objects),
        resource["state"],
        resource["reason"] or "-",
    ]


def _row(cluster: Mapping[str, Any], freshness: Mapping[str, Any]) -> list[str]:
    age = freshness["ageSeconds"]
    return [
        cluster["name"],
        "yes" if cluster["hub"] else "no",
        cluster.get("access", "Direct"),
        _connected(cluster, age),
        cluster["serverVersion"] or "<unknown>",
        f"{cluster['completeResourceCount']}/{cluster['resourceCount']}",
        "never" if age is None else f"{render_duration(age)} ago",
        _contact(cluster.get("agent")) or "-",
        _reason(freshness["reason"], cluster["message"]),
        pairs(cluster, "labels"),
    ]


def _contact(agent: Mapping[str, Any] | None) -> str:
    """When an agent last answered the hub; empty for a cluster without one."""
    if agent is None:
        return ""
    return f"{render_age(agent['answeredAt'])} ago" if agent["answeredAt"] else "never"


def _agent_details(agent: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if agent is None:
        return []
    state = "connected" if agent["connected"] else "not connected"
    return [("Agent", _reason(state, agent["message"])), ("Last contact", _contact(agent))]


def _reason(freshness: str, message: str) -> str:
    """Combine the reason for staleness with the watcher's message, which is often the same."""
    reasons = [freshness, "" if message == freshness else message]
    return "; ".join(filter(None, reasons)) or "-"


def _connected(cluster: Mapping[str, Any], age: float | None) -> str:
    """Show `unknown` if the watcher's last report is too old to rely on (rule A4)."""
    if cluster["connected"] and (age is None or age > _ANSWERED_WITHIN_SECONDS):
        return "unknown"
    return "yes" if cluster["connected"] else "no"
