"""Credential plugins: programs that print credentials (client.authentication.k8s.io)."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, cast
from urllib.parse import urlsplit

import orjson

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.kubeconfig_entries import ClusterEntry, ExecEntry
from fleetbus.kube.connection.typed_fields import TypedFields

_LETTERS: Final = 500
_INFO: Final = "KUBERNETES_EXEC_INFO"


@dataclass(frozen=True, slots=True)
class PluginCredentials:
    """The credentials that a plugin printed."""

    token: str = field(repr=False)
    certificate: str = field(repr=False)
    """PEM, like the key."""
    key: str = field(repr=False)
    expires: float | None
    """In seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin of one context.

    Args:
        entry: as the kubeconfig has it.
        cluster: the cluster that its credentials are for.
        ca: the certificate authority in PEM, from data or file.
        folder: relative commands with a slash start there.
        where: the place of the plugin, for messages.
    """

    entry: ExecEntry
    cluster: ClusterEntry
    ca: bytes
    folder: str
    where: str

    async def run(self) -> PluginCredentials:
        """Run the program.

        Raises:
            ConfigError: it cannot be run, fails, or prints something else.
        """
        interactive = self._is_interactive()
        env = {**os.environ, **self.entry.env, _INFO: self._info(interactive=interactive)}
        try:
            process = await asyncio.create_subprocess_exec(
                self._command(),
                *self.entry.args,
                env=env,
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except (OSError, ValueError) as e:  # ValueError: a NUL in an argument
            raise self._error(f"{self.entry.command} cannot be run: {e}", hint=True) from e
        try:
            printed, error_output = await process.communicate()
        finally:
            if process.returncode is None:  # we were cancelled
                process.kill()
        if process.returncode:
            reason = error_output.decode(errors="replace").strip()[-_LETTERS:]
            raise self._error(
                f"{self.entry.command} failed with exit code {process.returncode}: {reason}"
            )
        return self._read(printed)

    def _command(self) -> str:
        # A name without a slash is looked up in PATH; another is relative to the kubeconfig.
        command = self.entry.command
        return os.path.join(self.folder, command) if "/" in command else command  # noqa: PTH118 -- an absolute one stays

    def _is_interactive(self) -> bool:
        if self.entry.mode == "Never":
            return False
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if self.entry.mode == "Always" and not is_terminal:
            raise self._error("interactiveMode is Always, and standard input is not a terminal")
        return is_terminal

    def _info(self, *, interactive: bool) -> str:
        spec: dict[str, Any] = {"interactive": interactive}
        if self.entry.provide_cluster_info:
            spec["cluster"] = self._cluster_info()
        info = {"kind": "ExecCredential", "apiVersion": self.entry.api_version, "spec": spec}
        return orjson.dumps(info).decode()

    def _cluster_info(self) -> dict[str, Any]:
        cluster = self.cluster
        info = {
            "server": _shown_server(cluster.server),
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure,
            "certificate-authority-data": base64.b64encode(self.ca).decode(),
            "proxy-url": cluster.proxy_url,
            "disable-compression": cluster.disable_compression,
        }
        fields = {name: value for name, value in info.items() if value or name == "server"}
        return {**fields, "config": cluster.exec_config}

    def _read(self, printed: bytes) -> PluginCredentials:
        try:
            answer: object = orjson.loads(printed)
        except orjson.JSONDecodeError:
            raise self._error(f"{self.entry.command} did not print JSON") from None
        if not isinstance(answer, dict):
            raise self._error(f"{self.entry.command} did not print an ExecCredential")
        fields = TypedFields(cast("dict[str, Any]", answer), f"{self.where}: printed")
        if fields.text("kind") != "ExecCredential":
            raise fields.error("kind", "is not ExecCredential")
        if (version := fields.text("apiVersion")) != self.entry.api_version:
            raise fields.error(
                "apiVersion", f"is {version!r}, not {self.entry.api_version!r} as configured"
            )
        status = fields.map("status")
        if status is None:
            raise fields.error("status", "is missing")
        credentials = PluginCredentials(
            token=status.text("token"),
            certificate=status.text("clientCertificateData"),
            key=status.text("clientKeyData"),
            expires=_time(status),
        )
        if bool(credentials.certificate) != bool(credentials.key):
            raise status.error("clientCertificateData", "and 'clientKeyData' belong together")
        if not credentials.token and not credentials.key:
            raise status.error("token", "is missing, and there is no certificate")
        return credentials

    def _error(self, problem: str, *, hint: bool = False) -> ConfigError:
        advice = f"; {self.entry.install_hint}" if hint and self.entry.install_hint else ""
        return ConfigError(f"{self.where}: {problem}{advice}")


def _shown_server(server: str) -> str:
    """The address as client-go shows it: as it is written, but a path ends it."""
    parsed = urlsplit(server)
    return parsed._replace(query="", fragment="").geturl() if len(parsed.path) > 1 else server


def _time(status: TypedFields) -> float | None:
    text = status.text("expirationTimestamp")
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise status.error("expirationTimestamp", "is not a time") from None
