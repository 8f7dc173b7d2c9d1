"""Runs `fleetbus config view`: the addresses of a fleet, and where each is from."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from fleetbus.process import printer
from fleetbus.process.redact import without_secrets
from fleetbus_cli.table import render_table
from fleetbus_cli.target import Target, read_mro_config, resolve_target

_SHOWN: Final = ("api_url", "nats_url", "redis_url", "token", "token_file", "ca")
_HIDDEN: Final = frozenset({"token"})
_NOT_SET: Final = "not set"


class Setting(NamedTuple):
    """One value that commands use, and where it is from."""

    name: str
    value: str
    origin: str


def show_config(flags: Mapping[str, str | None], folder: str, *, as_json: bool) -> None:
    """Print the settings.

    Raises:
        ConfigError: no dev fleet runs in the folder, or a config file cannot be read.
    """
    target = resolve_target(**flags, folder=pathlib.Path(folder) if folder else None)
    settings = [*_addresses(target), _hub(target)]
    if as_json:
        printer.json_text(json.dumps([setting._asdict() for setting in settings], indent=2))
        return
    rows = [(name, value, origin) for name, value, origin in settings]
    printer.block(render_table(("SETTING", "VALUE", "FROM"), rows))


def _addresses(target: Target) -> Iterator[Setting]:
    for name in _SHOWN:
        value = str(getattr(target, name))
        text = "(set)" if value and name in _HIDDEN else without_secrets(value)
        yield Setting(name, text, target.origins.get(name, _NOT_SET) if value else _NOT_SET)


def _hub(target: Target) -> Setting:
    """Find the kubeconfig of the hub as `resolve_hub` does, and kubectl-multicluster at last."""
    for variable in ("FLEETBUS_HUB_KUBECONFIG", "KUBECONFIG"):
        if variable == "KUBECONFIG" and target.hub:
            return Setting("hub_kubeconfig", target.kubeconfig, target.origins["hub"])
        if path := os.environ.get(variable):
            return Setting("hub_kubeconfig", path, f"environment {variable}")
    former = read_mro_config().kubeconfig
    origin = "the file of kubectl-multicluster, for apply and the like" if former else _NOT_SET
    return Setting("hub_kubeconfig", former, origin)
