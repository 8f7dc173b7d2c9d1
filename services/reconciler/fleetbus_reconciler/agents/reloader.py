"""Loads the accounts of agents into the nats-server beside it, as `fleetbus-nats-reloader`.

It follows one Secret, writes its content to the file that the configuration includes, and signals
the server. What the server refuses is taken back, because a configuration with one error is refused
as a whole, and so would every later change be.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import contextlib
import functools
import os
import pathlib
import signal
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import aiohttp
import structlog

from fleetbus.clusters.providers.cluster import SECRETS
from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus.kube.json_fields import string
from fleetbus.kube.list_watch.listing import WatchTarget
from fleetbus.kube.list_watch.reflect import ObjectList, Observer, WatchType, reflect
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.log_once import LogOnce
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_proto.resources import parse_resource
from fleetbus_reconciler.agents.registrar import ACCOUNTS_KEY

log = structlog.get_logger()

_LARGEST: Final = 64 * 1024 * 1024
"""Bytes of accounts."""
_WITHIN: Final = timedelta(seconds=10)
_POLL: Final = timedelta(milliseconds=50)
_RETRY: Final = timedelta(seconds=5)


class RefusedError(Exception):
    """The server did not load the configuration."""


class NatsServer:
    """A running nats-server, its included file, and how to signal it.

    Args:
        file: the included file.
        pid_file: of the server.
        monitor: address of its monitoring.
        within: the time that a reload may take.
    """

    def __init__(
        self,
        *,
        file: pathlib.Path,
        pid_file: pathlib.Path,
        monitor: str,
        within: timedelta = _WITHIN,
    ) -> None:
        self._file = file
        self._pid_file = pid_file
        self._monitor = monitor
        self._within = within

    async def load(self, accounts: bytes) -> None:
        """Write the accounts and have them loaded; what is refused is taken back.

        Raises:
            RefusedError: the server refused them, or cannot be asked.
            OSError: the file cannot be written, or the server does not run.
        """
        before = self._file.read_bytes() if self._file.exists() else b""
        self._write(accounts)
        try:
            await self._reload()
        except (RefusedError, OSError):
            if accounts != before:
                self._write(before)
            raise
        # nats-server 2.15 gives an account that is new its imports with the reload after it.
        await self._reload()

    def _write(self, accounts: bytes) -> None:
        new = self._file.with_name(f".{self._file.name}.new")
        new.write_bytes(accounts)
        new.replace(self._file)

    async def _reload(self) -> None:
        async with aiohttp.ClientSession() as session:
            before = await self._loaded_at(session)
            os.kill(int(self._pid_file.read_text()), signal.SIGHUP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._within.total_seconds()):
                    # Nothing else tells: the server answers no signal.
                    while await self._loaded_at(session) == before:  # noqa: ASYNC110
                        await asyncio.sleep(_POLL.total_seconds())
                    return
        raise RefusedError("nats-server has not loaded its configuration; its log says why")

    async def _loaded_at(self, session: aiohttp.ClientSession) -> str:
        try:
            async with session.get(f"{self._monitor}/varz") as response:
                return string(await response.json(), "config_load_time")
        except (aiohttp.ClientError, ValueError) as e:
            raise RefusedError(f"nats-server at {self._monitor} does not answer: {e}") from e


class Reloader:
    """Follows the Secret, and has each content loaded.

    Args:
        hub: access data of the hub; None means the pod's service account.
        secret: namespace/name.
        server: the server beside it.
    """

    def __init__(self, *, hub: KubeConfig | None, secret: str, server: NatsServer) -> None:
        self._config = hub
        self._namespace, _, self._name = secret.partition("/")
        self._server = server
        self.loaded: bytes | None = None
        """The accounts that the server has loaded from here; None before."""
        self._wanted: bytes | None = None
        self._changed = asyncio.Event()
        self._log_once = LogOnce()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name="follow the accounts of agents")
            group.create_task(self._load(), name="load the accounts of agents")

    async def _follow(self) -> None:
        target = WatchTarget(
            parse_resource(SECRETS), self._namespace, field_selector=f"metadata.name={self._name}"
        )
        async with KubeClient(self._config) as hub:
            async for step in reflect(hub, target, observer=Observer(on_failure=_log)):
                if isinstance(step, ObjectList):
                    objects = step.objects
                else:
                    # One that is deleted leaves the accounts as they are.
                    objects = [step.object] if step.type is not WatchType.DELETED else []
                for obj in objects:
                    self._take(obj)

    def _take(self, secret: Object) -> None:
        accounts = read_accounts(secret)
        if accounts is None:
            log.warning("agent_accounts_unusable", secret=f"{self._namespace}/{self._name}")
        elif accounts != self._wanted:
            self._wanted = accounts
            self._changed.set()

    async def _load(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            accounts = self._wanted or b""
            try:
                await self._server.load(accounts)
            except (RefusedError, OSError, ValueError) as e:
                if self._log_once.should_log(str(e)):
                    log.warning("agent_accounts_not_loaded", error=str(e))
                await asyncio.sleep(_RETRY.total_seconds())
                self._changed.set()
            else:
                self.loaded = accounts
                self._log_once.reset()
                log.info("agent_accounts_loaded", bytes=len(accounts))


def read_accounts(secret: Object) -> bytes | None:
    """The accounts in the Secret; None if there are none, or they cannot be read."""
    text = string(secret, "data", ACCOUNTS_KEY)
    try:
        content = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(
            base64.b64decode(text, validate=True), _LARGEST
        )
    except (binascii.Error, ValueError, zlib.error):
        return None
    return content if text else None


def _log(error: KubeError) -> None:
    log.warning("hub_unreadable", resource=SECRETS, error=str(error))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `fleetbus-nats-reloader`."""
    parser = argparse.ArgumentParser(
        prog="fleetbus-nats-reloader",
        description="Loads the accounts of agents into the nats-server beside it.",
    )
    parser.add_argument("--secret", required=True, help="Secret of the hub, as NAMESPACE/NAME")
    parser.add_argument("--file", required=True, type=pathlib.Path, help="included file")
    parser.add_argument("--pid-file", required=True, type=pathlib.Path, help="of nats-server")
    parser.add_argument("--monitor", required=True, help="address of its monitoring")
    parser.add_argument("--kubeconfig", type=pathlib.Path, help="of the hub, outside of a pod")
    parser.add_argument("--context", default="", help="context in that file")
    return run_service("fleetbus-nats-reloader", functools.partial(_main, parser.parse_args(argv)))


async def _main(arguments: argparse.Namespace) -> None:
    shared = load_settings(SharedSettings)
    set_up_logs(shared.log_format, shared.log_level)
    hub = (
        read_kube_config(arguments.kubeconfig, arguments.context) if arguments.kubeconfig else None
    )
    server = NatsServer(file=arguments.file, pid_file=arguments.pid_file, monitor=arguments.monitor)
    reloader = Reloader(hub=hub, secret=arguments.secret, server=server)
    await run_until_stopped(reloader=reloader.run())
