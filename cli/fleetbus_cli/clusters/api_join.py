"""Runs `kubectl-multicluster join` and `unjoin`, through the query API, as multi_resource_operator.

`fleetbus join` writes to the hub itself, with a kubeconfig of the hub.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, Final

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import by_context, current_context, read_kube_config
from fleetbus.process import printer
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.target import ApiFlags

_FIELD: Final = "kubeconfig"


def join_by_api(
    name: str, file: pathlib.Path, *, context: str, insecure: bool, api: ApiFlags
) -> int:
    """Join a cluster; return the exit status.

    Only one context of the file leaves this machine.

    Raises:
        ConfigError: the file is not a kubeconfig, or the query API finds something wrong with it.
    """
    config = read_kube_config(file, context)
    chosen, parts = current_context(config), by_context(config)
    if chosen not in parts:
        raise ConfigError(
            f"{file}: it has no current context: choose one of {', '.join(parts) or 'none'}"
            " with --context"
        )
    query = {"cluster": name, "insecure": str(insecure).lower()}
    content = parts[chosen].document.encode()
    return _ask(lambda client: client.post_file("/v1/join", query, _FIELD, content), api)


def unjoin_by_api(name: str, api: ApiFlags) -> int:
    """Unjoin a cluster; return the exit status.

    Raises:
        ConfigError: the query API finds something wrong with the name.
    """
    return _ask(lambda client: client.delete("/v1/unjoin", {"cluster": name}), api)


def _ask(change: Callable[[ApiClient], Any], api: ApiFlags) -> int:
    try:
        printer.line(change(ApiClient(api.resolve()))["res"])
    except ApiFailed as e:
        printer.note(f"kubectl-multicluster: {e}")
        return 1
    return 0
