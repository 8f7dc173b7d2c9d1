"""Runs `fleetbus diff`: prints what changed in the fleet, by change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fleetbus.process import printer
from fleetbus_cli.api_client import ApiClient, ApiFailed, ApiRefused
from fleetbus_cli.documents import render_json
from fleetbus_cli.history.answer_parts import lacks, note_window, print_differences
from fleetbus_cli.progress import Progress
from fleetbus_cli.table import warn_incomplete, warn_undetermined
from fleetbus_cli.target import ApiFlags
from fleetbus_cli.unknown import require_clusters

_NAMED: Final = 8
"""Clusters that a line names."""


def show_changes(
    parameters: Mapping[str, str], clusters: Sequence[str], output: str, flags: ApiFlags
) -> int:
    """Print changes; return the exit status.

    Args:
        parameters: query parameters of `/fleet/v1/changes`; empty ones are left out.
        clusters: only these.
        output: `table` or `json`.
        flags: where the query API is.

    Raises:
        ConfigError: no query API address is set, or the query is malformed.
        UnknownName: a cluster is not in the fleet.
    """
    api = ApiClient(flags.resolve())
    query: dict[str, str | Sequence[str]] = {
        name: value for name, value in parameters.items() if value
    }
    query |= {"cluster": clusters} if clusters else {}
    try:
        with Progress("comparing the fleet at two points in time"):
            answer = _ask(api, query)
        require_clusters(api, [name for name in clusters if lacks(answer, name)])
    except ApiFailed as e:
        printer.note(f"fleetbus: {e}")
        return 1
    if output == "json":
        printer.json_text(render_json(answer))
        return 0
    _print(answer)
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
            answer = api.get("/fleet/v1/changes", {**query, "since": begin})
        except ApiRefused:  # the end is before the window, too
            raise e from None
        printer.note(f"warning: {e}; this is what changed since then")
        return answer


def _print(answer: Mapping[str, Any]) -> None:
    groups: Sequence[Mapping[str, Any]] = answer["groups"]
    # A query API that is older than this command reports neither this nor `writtenBy`.
    reports: Sequence[Mapping[str, Any]] = answer.get("distribution") or ()
    for group in groups:
        printer.line(_headline(group))
        print_differences(group, "    ")
        if group["others"]:
            printer.line(f"    not in {_names(group['others'])}")
    for report in reports:
        printer.line(_describe(report))
    if (more := answer.get("distributionCount", 0) - len(reports)) > 0:
        printer.note(f"{more} earlier reports of the distributor are left out.")
    if not groups and not reports:
        printer.note(f"Nothing changed since {answer['from'][:19]}Z.")
    if answer["truncated"]:
        printer.note(
            f"Showing {len(groups)} of {answer['groupCount']} changes or more: name a type, a"
            " namespace or a shorter time."
        )
    if answer["ownedObjects"]:
        printer.note(
            f"{answer['ownedObjects']} objects with an owner are left out; --owned shows them."
        )
    warn_undetermined(answer["undetermined"])
    note_window(answer["window"])
    warn_incomplete(answer["freshness"], answer["incomplete"])


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
    writer = group.get("writtenBy")
    by = f", of {_mcr(writer)}" if writer else ""
    return f"{kind} {name} {group['change']} in {where}{by}"


def _describe(report: Mapping[str, Any]) -> str:
    """Describe what the distributor reported: `10:31:07Z MultiClusterResource a/b: corrected …`."""
    revision = f" revision {report['revision']}" if report["revision"] else ""
    wave = f" wave {report['wave']}" if report["wave"] else ""
    where = f" in {_names(report['clusters'])}" if report["clusters"] else ""
    times = f", {report['count']} times" if report["count"] > len(report["clusters"] or "1") else ""
    objects = [_describe_object(obj) for obj in report["objects"]]
    if report["moreObjects"]:
        objects.append(f"{report['moreObjects']} more")
    detail = report["message"] or ", ".join(objects) or report["reason"]
    summary = f"{report['event']}{revision}{wave}{where}{times}{f': {detail}' if detail else ''}"
    return f"{report['last'][:19]}Z  {_mcr(report['owner'])} {summary}"


def _describe_object(obj: Mapping[str, str]) -> str:
    by = f" by {obj['manager']}" if obj["manager"] else ""
    return f"{obj['object']}{obj['field']}{by}"


def _mcr(owner: Mapping[str, str]) -> str:
    return f"MultiClusterResource {owner['namespace']}/{owner['name']}"


def _names(clusters: Sequence[str]) -> str:
    more = len(clusters) - _NAMED
    text = ", ".join(clusters[:_NAMED])
    return f"{text} and {more} more" if more > 0 else text
