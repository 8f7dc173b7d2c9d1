"""Runs `fleetbus timeline`: prints what happened to one object."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fleetbus.process import printer
from fleetbus.process.human_time import render_duration
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.documents import render_json
from fleetbus_cli.history.answer_parts import note_window, print_differences
from fleetbus_cli.table import warn_incomplete
from fleetbus_cli.target import ApiFlags
from fleetbus_cli.unknown import require_clusters

_STATUS: Final = re.compile(r"status($|[.\[])")


def show_timeline(
    path: tuple[str, str, str, str],
    parameters: Mapping[str, str],
    output: str,
    flags: ApiFlags,
    *,
    with_status: bool,
) -> int:
    """Print a timeline; return the exit status.

    Args:
        path: cluster, resource, namespace (empty for none) and name.
        parameters: query parameters.
        output: `table` or `json`.
        flags: where the query API is.
        with_status: else fields of the status are left out, and changes of nothing else.

    Raises:
        ConfigError: no query API address is set, or the query is malformed.
        UnknownName: the cluster is not in the fleet.
    """
    cluster, resource, namespace, name = (urllib.parse.quote(segment, safe="") for segment in path)
    api = ApiClient(flags.resolve())
    where = f"/fleet/v1/timeline/{cluster}/{resource}/{namespace or '-'}/{name}"
    try:
        answer = _ask(api, where, parameters, path[0])
    except ApiFailed as e:
        is_bare = e.status == HTTPStatus.NOT_FOUND and not namespace
        hint = "; an object in a namespace is named NAMESPACE/NAME" if is_bare else ""
        printer.note(f"fleetbus: {e}{hint}")
        return 1
    everything: list[Mapping[str, Any]] = answer["entries"]
    entries = everything if with_status else [*filter(None, map(_without_status, everything))]
    if output == "json":
        printer.json_text(render_json({**answer, "entries": entries}))
        return 0
    if left_out := len(everything) - len(entries):
        printer.note(f"Left out, because only the status changed: {left_out}.")
    if answer["hasMore"]:
        printer.note("Earlier changes are left out: --limit shows more.")
    for entry in entries:
        printer.line(f"{entry['time'][:23]}Z  {_describe(entry)}")
        if entry["stage"] == "change":
            print_differences(entry, " " * 26)
    if not everything:
        printer.note(f"No changes since {answer['since'][:19]}Z.")
    note_window(answer["window"])
    warn_incomplete(answer["freshness"], answer["incomplete"])
    return 0


def _ask(api: ApiClient, where: str, query: Mapping[str, str], cluster: str) -> Mapping[str, Any]:
    try:
        return api.get(where, query)
    except ApiFailed as e:
        if e.status == HTTPStatus.NOT_FOUND:
            require_clusters(api, [cluster])
        raise


def _without_status(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """An entry without fields of the status; None if there were no others."""
    if entry["stage"] != "change" or not entry["differences"]:
        return entry
    others = [
        difference for difference in entry["differences"] if not _STATUS.match(difference["path"])
    ]
    if not others and not entry["moreDifferences"]:
        return None
    return {**entry, "differences": others}


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
    text = f"{entry['verb']}, version {entry['resourceVersion']}, on the bus"
    delay = entry["storedAfterSeconds"]
    if delay is not None:
        text += f" {_render_delay(delay)} after the watcher saw it"
    return f"{text}{late}"


def _render_delay(seconds: float) -> str:
    """Render a delay, in milliseconds below a second."""
    milliseconds = max(0.0, seconds) * 1000
    if milliseconds < 1:
        return "<1 ms"
    return render_duration(seconds) if seconds >= 1 else f"{milliseconds:.0f} ms"


def _describe_run(entry: Mapping[str, Any]) -> str:
    waited, ran = (_render_delay(entry[name]) for name in ("waitedSeconds", "ranSeconds"))
    request = entry["request"]
    name = "/".join(filter(None, (request["cluster"], request["namespace"], request["name"])))
    error = f": {entry['error']}" if entry["error"] else ""
    return (
        f"{entry['controller']} reconciled {name}: {entry['outcome']}, queued for {waited}, ran"
        f" for {ran}{error}"
    )
