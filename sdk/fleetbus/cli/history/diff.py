"""Runs `fleetbus diff`: prints what changed in the fleet, by change."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fleetbus.cli.api_client import ApiClient, ApiFailed, ApiRefused
from fleetbus.cli.documents import render_json
from fleetbus.cli.history.differences import print_differences
from fleetbus.cli.history.window import lacks, note_window, warn_undetermined
from fleetbus.cli.printable import printable
from fleetbus.cli.progress import Progress
from fleetbus.cli.table import warn_incomplete
from fleetbus.cli.target import ApiFlags
from fleetbus.cli.unknown import require_clusters

_NAMED: Final = 8
"""Clusters that a line names."""


def show_changes(
    asked: Mapping[str, str], clusters: Sequence[str], output: str, flags: ApiFlags
) -> int:
    """Print changes; return the exit status.

    Args:
        asked: query parameters of `/fleet/v1/changes`; empty ones are left out.
        clusters: only these.
        output: `table` or `json`.
        flags: where the query API is.

    Raises:
        ConfigError: no query API address is set, or the query is malformed.
        UnknownName: a cluster is not in the fleet.
    """
    api = ApiClient(flags.resolve())
    query: dict[str, str | Sequence[str]] = {name: value for name, value in asked.items() if value}
    query |= {"cluster": clusters} if clusters else {}
    try:
        with Progress("comparing the fleet at two points in time"):
            found = _ask(api, query)
        require_clusters(api, [name for name in clusters if lacks(found, name)])
    except ApiFailed as e:
        print(f"fleetbus: {e}", file=sys.stderr)
        return 1
    if output == "json":
        print(render_json(found))
        return 0
    _print(found)
    return 0


def _ask(api: ApiClient, query: Mapping[str, str | Sequence[str]]) -> Mapping[str, Any]:
    """Ask for the changes; of a time before the window, for those since the window begins.

    Raises:
        ApiFailed: no answer, no such type, or the whole period is before the window.
    """
    try:
        return api.get("/fleet/v1/changes", query)
    except ApiFailed as e:
        if e.status != HTTPStatus.GONE:
            raise
        begin = api.get("/fleet/v1/history")["window"]["from"]
        try:
            found = api.get("/fleet/v1/changes", {**query, "since": begin})
        except ApiRefused:  # the end is before the window, too
            raise e from None
        print(f"warning: {e}; this is what changed since then", file=sys.stderr)
        return found


def _print(found: Mapping[str, Any]) -> None:
    groups: Sequence[Mapping[str, Any]] = found["groups"]
    for group in groups:
        print(printable(_headline(group)))
        print_differences(group, "    ")
        if group["others"]:
            print(f"    not in {_names(group['others'])}")
    if not groups:
        print(f"Nothing changed since {found['from'][:19]}Z.", file=sys.stderr)
    if found["truncated"]:
        print(
            f"Showing {len(groups)} of {found['groupCount']} changes or more: name a type, a"
            " namespace or a shorter time.",
            file=sys.stderr,
        )
    if found["ownedObjects"]:
        print(
            f"{found['ownedObjects']} objects that others own are left out; --owned shows them.",
            file=sys.stderr,
        )
    warn_undetermined(found["undetermined"])
    note_window(found["window"])
    warn_incomplete(found["freshness"], found["incomplete"])


def _headline(group: Mapping[str, Any]) -> str:
    resource = group["resource"]
    kind = str(resource["kind"] or resource["plural"])
    name = "/".join(filter(None, (group["namespace"], group["name"])))
    clusters, others = group["clusters"], group["others"]
    count = len(clusters)
    where = _names(clusters)
    if others or count > 1:
        all_of = f" of {count + len(others)}" if others else ""
        where = f"{count}{all_of} clusters: {where}"
    return f"{kind} {name} {group['change']} in {where}"


def _names(clusters: Sequence[str]) -> str:
    more = len(clusters) - _NAMED
    shown = ", ".join(clusters[:_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
