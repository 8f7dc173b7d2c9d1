"""The servers that the conformance cases run against: an emulated one, a real one."""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
import threading
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from fleetbus_emulator.apiserver import Cluster, User, serve
from fleetbus_emulator.apiserver.admin import serve_admin
from fleetbus_emulator.controllers import CONTROL_PLANE, Timing, simulate
from support.api.conformance_client import Server

TOKEN = "conformance-admin"
# The collector takes a moment: a test sees an object that is about to go.
TIMING = Timing(collect=timedelta(milliseconds=30))


@contextmanager
def emulated(
    *,
    controllers: bool = True,
    bookmark_interval: timedelta = timedelta(seconds=0.2),
    definition_delay: timedelta = timedelta(0),
) -> Generator[Server]:
    """Serve an emulated cluster in a thread of its own; only the server's token may do anything.

    Its controllers are those of a control plane: there are no nodes, so no pod ever runs.
    """
    loop = asyncio.new_event_loop()
    started: asyncio.Future[Server] = loop.create_future()
    stop = asyncio.Event()

    async def live() -> None:
        cluster = Cluster(
            "conformance",
            tokens={TOKEN: User("admin", ("system:masters", "system:authenticated"))},
            bookmark_interval=bookmark_interval,
            definition_delay=definition_delay,
        )
        async with AsyncExitStack() as stack:
            servers = await stack.enter_async_context(serve([cluster]))
            admin = await stack.enter_async_context(serve_admin(servers))
            if controllers:
                await stack.enter_async_context(
                    simulate([cluster], controllers=CONTROL_PLANE, timing=TIMING)
                )
            headers = {"Authorization": f"Bearer {TOKEN}"}
            compaction = f"{admin}/clusters/conformance/compact"
            started.set_result(Server(servers.url("conformance"), headers, compaction=compaction))
            await stop.wait()

    async def ready() -> Server:
        return await started

    thread = threading.Thread(target=loop.run_until_complete, args=(live(),), name="conformance")
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(ready(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def from_kubeconfig(path: Path, name: str = "") -> Server:
    """The server of a context of a kubeconfig; without a name, of the first."""
    config: dict[str, Any] = yaml.load(path.read_text(), yaml.CSafeLoader)
    contexts: list[dict[str, Any]] = config["contexts"]
    context = (_named(contexts, name) if name else contexts[0])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return Server(cluster["server"].rstrip("/"), headers, verify=_verification(cluster, user, path))


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _verification(
    cluster: dict[str, Any], user: dict[str, Any], path: Path
) -> ssl.SSLContext | bool:
    if cluster["server"].startswith("http://"):
        return True
    authority = _pem(cluster, "certificate-authority", path)
    context = ssl.create_default_context(cadata=authority)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = (_pem(user, f"client-{field}", path) for field in ("certificate", "key"))
    if certificate and key:
        # The ssl module reads certificates from files only.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
            both.write(certificate + key)
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _pem(entry: dict[str, Any], name: str, path: Path) -> str | None:
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data).decode()
    return (path.parent / entry[name]).read_text() if name in entry else None
