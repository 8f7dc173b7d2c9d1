"""The configuration file of multi_resource_operator: read where nothing else names a fleet.

It is created at the first use, as there, and never overwritten; `fleetbus dev down` removes the one
of its fleet.
"""

from __future__ import annotations

import pathlib
import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from fleetbus.errors import ConfigError

_FILE: Final = pathlib.Path(".multi-cluster-operator") / "config"
_HIGHEST_PORT: Final = 65535
_HEAD: Final = """\
# Address of the query API for kubectl-multicluster, in the format of multi_resource_operator.
# It is read last: flags, FLEETBUS_API_URL, a fleet of `fleetbus dev` in this folder, and
# ~/.fleetbus/config.yaml, the place for the CA and the token, take precedence.
"""


class MroConfig(NamedTuple):
    """The content of the file; empty where it has none."""

    api_url: str = ""
    kubeconfig: str = ""
    """Kubeconfig of the hub: what apply, create, delete and edit are for."""


def mro_config_file() -> pathlib.Path:
    """Where the file is, whether there is one or not."""
    return pathlib.Path.home() / _FILE


def parse_mro_config(fields: Mapping[str, Any]) -> MroConfig:
    """Read `server: <port>` or serverIP and serverPort, and masterClusterKubeConfigPath.

    Raises:
        ConfigError: a port is none.
    """
    return MroConfig(
        _url(fields), str(fields.get("masterClusterKubeConfigPath") or "").replace("\0", "")
    )


def _url(fields: Mapping[str, Any]) -> str:
    port = str(fields.get("serverPort") or fields.get("server") or "")
    if not port or port.startswith(("http://", "https://")):
        return port
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _HIGHEST_PORT):
        raise ConfigError(
            f"{mro_config_file()}: {port[:40]!r} is not a port: write `server: 8888`, serverIP and"
            " serverPort, or `server: https://fleet.example:8443`"
        )
    host = str(fields.get("serverIP") or "127.0.0.1")
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def create_mro_config(api_url: str) -> None:
    """Create the file with an address, unless it is there; one that cannot be written is none."""
    content = _content(api_url)
    if not content:
        return
    with suppress(OSError, RuntimeError):  # RuntimeError: this user has no home directory
        path = mro_config_file()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:  # never over an existing one
            file.write(content)


def remove_mro_config(api_url: str) -> None:
    """Remove the file if it is as it was created with this address, whose fleet has ended."""
    with suppress(OSError, RuntimeError, UnicodeDecodeError):
        path = mro_config_file()
        if path.read_text(encoding="utf-8") == _content(api_url):
            path.unlink()
            path.parent.rmdir()  # unless something else is in it


def _content(api_url: str) -> str:
    """The text of the file with an address; empty if it cannot have that."""
    parts = urllib.parse.urlsplit(api_url)
    if not parts.hostname or "@" in parts.netloc:  # a password belongs in no file of ours
        return ""
    lines = f"server: {api_url}\n"
    if parts.scheme == "http" and parts.port and not parts.path.strip("/"):
        lines = f"serverIP: {parts.hostname}\nserverPort: {parts.port}\n"
    return f"{_HEAD}{lines}"
