"""The types of resources in the fleet: `fleetbus api-resources`, and categories such as `all`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetbus.process import printer
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.documents import render_json
from fleetbus_cli.objects.table_output import print_rows
from fleetbus_cli.target import ApiFlags

_HEAD = ("NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND")
_PATH = "/fleet/v1/resources"


def show_types(output: str, flags: ApiFlags, *, namespaced: bool | None, no_headers: bool) -> int:
    """Print the types of resources that the fleet has; return the exit status.

    Args:
        output: table, wide, json or name.
        flags: where the query API is.
        namespaced: only those that are, or are not; None for all.
        no_headers: leave out the line with the names of the columns.

    Raises:
        ConfigError: no query API address is set.
    """
    api = ApiClient(flags.resolve())
    try:
        items = read_types(api)
    except ApiFailed as e:
        printer.note(f"fleetbus: {e}")
        return 1
    items = [item for item in items if namespaced in (None, item["namespaced"])]
    if output == "json":
        printer.json_text(render_json({"items": items}))
    elif output == "name":
        printer.block("\n".join(map(full_name, items)))
    else:
        is_wide = output == "wide"
        head = (*_HEAD, "CATEGORIES") if is_wide else _HEAD
        print_rows(head, [_row(item, is_wide=is_wide) for item in items], no_headers=no_headers)
    return 0


def read_types(api: ApiClient) -> Sequence[Mapping[str, Any]]:
    """Read the types.

    Raises:
        ApiFailed: no response.
    """
    return list(api.get(_PATH)["items"])


def find_category(api: ApiClient, word: str) -> list[str]:
    """The names of the types in a category; none if there is no such category.

    Raises:
        ApiFailed: no response.
    """
    return [full_name(item) for item in read_types(api) if word in item["categories"]]


def full_name(item: Mapping[str, Any]) -> str:
    """The name that kubectl uses: `pods`, `deployments.apps`."""
    group = item["group"]
    return str(item["plural"]) if group == "core" else f"{item['plural']}.{group}"


def _row(item: Mapping[str, Any], *, is_wide: bool) -> list[str]:
    version = item["versions"][0]
    return [
        item["plural"],
        ",".join(item["shortNames"]),
        version if item["group"] == "core" else f"{item['group']}/{version}",
        "true" if item["namespaced"] else "false",
        item["kind"],
        *([",".join(item["categories"])] if is_wide else []),
    ]
