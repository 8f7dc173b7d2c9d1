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
    items = [one for one in items if namespaced in (None, one["namespaced"])]
    if output == "json":
        printer.json_text(render_json({"items": items}))
    elif output == "name":
        printer.block("\n".join(map(full_name, items)))
    else:
        is_wide = output == "wide"
        head = (*_HEAD, "CATEGORIES") if is_wide else _HEAD
        print_rows(head, [_row(one, is_wide=is_wide) for one in items], no_headers=no_headers)
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
    return [full_name(one) for one in read_types(api) if word in one["categories"]]


def full_name(one: Mapping[str, Any]) -> str:
    """The name that kubectl uses: `pods`, `deployments.apps`."""
    group = one["group"]
    return str(one["plural"]) if group == "core" else f"{one['plural']}.{group}"


def _row(one: Mapping[str, Any], *, is_wide: bool) -> list[str]:
    version = one["versions"][0]
    return [
        one["plural"],
        ",".join(one["shortNames"]),
        version if one["group"] == "core" else f"{one['group']}/{version}",
        "true" if one["namespaced"] else "false",
        one["kind"],
        *([",".join(one["categories"])] if is_wide else []),
    ]
