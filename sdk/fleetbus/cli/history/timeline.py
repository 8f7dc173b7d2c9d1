"""Runs `fleetbus timeline`: prints what happened to one object."""

from __future__ import annotations

import sys
import urllib.parse
from collections.abc import Mapping
from typing import Any

from fleetbus.cli.api_client import ApiClient, ApiFailed
from fleetbus.cli.documents import render_json
from fleetbus.cli.history.differences import print_differences
from fleetbus.cli.history.window import note_window
from fleetbus.cli.table import warn_incomplete
from fleetbus.cli.target import ApiFlags
from fleetbus.process.human_time import render_duration


def show_timeline(
    path: tuple[str, str, str, str], asked: Mapping[str, str], output: str, flags: ApiFlags
) -> int:
    """Print a timeline; return the exit status.

    Args:
        path: cluster, resource, namespace (empty for none) and name.
        asked: query parameters.
        output: `table` or `json`.
        flags: where the query API is.

    Raises:
        ConfigError: no query API address is set, or the query is malformed.
    """
    cluster, resource, namespace, name = (urllib.parse.quote(part, safe="") for part in path)
    api = ApiClient(flags.resolve())
    where = f"/fleet/v1/timeline/{cluster}/{resource}/{namespace or '-'}/{name}"
    try:
        found = api.get(where, asked)
    except ApiFailed as e:
        print(f"fleetbus: {e}", file=sys.stderr)
        return 1
    if output == "json":
        print(render_json(found))
        return 0
    if found["hasMore"]:
        print("Earlier changes are left out: --limit shows more.", file=sys.stderr)
    for entry in found["entries"]:
        print(f"{entry['time'][:23]}Z  {_describe(entry)}")
        if entry["stage"] == "change":
            print_differences(entry, " " * 26)
    if not found["entries"]:
        print(f"It has not changed since {found['since'][:19]}Z.", file=sys.stderr)
    note_window(found["window"])
    warn_incomplete(found["freshness"], found["incomplete"])
    return 0


def _describe(entry: Mapping[str, Any]) -> str:
    match entry["stage"]:
        case "change":
            return _describe_change(entry)
        case "reconcile":
            return _describe_run(entry)
        case _:
            owner = entry["owner"]
            text = entry["message"] or entry["reason"] or ", ".join(entry["objects"])
            name = f"{owner['kind']} {owner['namespace']}/{owner['name']}"
            return f"{entry['event']} by {name}{f': {text}' if text else ''}"


def _describe_change(entry: Mapping[str, Any]) -> str:
    late = ", found by a list: it may have been earlier" if entry["foundByList"] else ""
    text = f"{entry['verb']} to version {entry['resourceVersion']}, on the bus"
    delay = entry["storedAfterSeconds"]
    if delay is not None:
        text += f" {render_duration(max(0.0, delay))} after the watcher saw it"
    return f"{text}{late}"


def _describe_run(entry: Mapping[str, Any]) -> str:
    waited, ran = (render_duration(entry[name]) for name in ("waitedSeconds", "ranSeconds"))
    request = entry["request"]
    name = "/".join(filter(None, (request["cluster"], request["namespace"], request["name"])))
    error = f": {entry['error']}" if entry["error"] else ""
    return (
        f"{entry['controller']} reconciled {name}: {entry['outcome']}, queued for {waited}, ran"
        f" for {ran}{error}"
    )
