"""A whole fleet on this machine: emulated clusters, NATS, Valkey and the services, as processes.

Start order: NATS and Valkey, the API servers, what makes the clusters members of the fleet, then
the services side by side. The owner of a Stack is the parent of every process, so none survives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import aiohttp

from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config, server_of
from fleetbus_cli.capture.reading import Capture
from fleetbus_devfleet.captures.opening import open_capture
from fleetbus_devfleet.processes.children import Child, ChildError, stop_children
from fleetbus_devfleet.processes.patience import Patience
from fleetbus_devfleet.processes.servers import (
    NatsServer,
    ValkeyServer,
    nats_server_blocking,
    valkey_server_blocking,
)
from fleetbus_devfleet.stack.plan import (
    APISERVER,
    api_port_file,
    apiserver_command,
    clean_environment,
    services,
)
from fleetbus_devfleet.stack.register import register_clusters
from fleetbus_devfleet.stack.state import PartState, PartStatus, StackState, probe, problem_of
from fleetbus_emulator.files import admin_port_file
from fleetbus_emulator.ports import LOOPBACK, HeldPort

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fleetbus_devfleet.stack.plan import Part, StackPlan

NATS = "nats"
VALKEY = "valkey"
CAPTURE = "capture"
"""Not a part: the objects that the clusters begin with."""

_READY_PATIENCE = timedelta(seconds=60)
_APISERVER_PATIENCE = timedelta(seconds=20)
_POLL = 0.05


class Stack:
    """The processes of one plan; use it as an async context manager, from the main thread.

    Args:
        plan: what to run.
        report: called with the name of each part when it starts to be waited for, and when it is
            ready, at the start and at each restart; it shows progress and must not block.
    """

    def __init__(
        self, plan: StackPlan, *, report: Callable[[str, bool], None] = lambda _name, _ready: None
    ) -> None:
        self.plan = plan
        self._report = report
        self._servers = contextlib.ExitStack()
        self._nats: NatsServer | None = None
        self._valkey: ValkeyServer | None = None
        self._children: dict[str, Child] = {}
        self._parts: dict[str, Part] = {}
        # Names in the order in which they became ready.
        self._ready: list[str] = []

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Start everything and wait until every part is ready.

        Raises:
            ChildError: a part ended or did not become ready; the message has its last words.
            PlanError: the CRDs of fleetbus are missing.
            CaptureError: the capture of the plan cannot be opened.
        """
        self._clean_folder()
        self._start_servers()
        parts = services(
            self.plan,
            nats_url=self.nats_url,
            redis_url=self.redis_url,
            api_port=self._hold_port(),
        )
        self._parts = {part.name: part for part in parts}
        # Most of a start is Python importing, so what can be side by side is.
        self._start_services(needs_clusters=False)
        await self._start_apiserver()
        if self.plan.capture is not None:
            await self._open(self.plan.capture)
        await register_clusters(self.plan)
        self._start_services(needs_clusters=True)
        await self._wait_ready(parts)

    async def aclose(self) -> None:
        """Stop everything, the services first; returns when no process is left."""
        everyone = [self._children.pop(name) for name in list(self._children)]
        apiserver = [child for child in everyone if child.name == APISERVER]
        others = [child for child in everyone if child.name != APISERVER]
        try:
            await stop_children(others, apiserver)
        finally:
            self._servers.close()

    # --- what runs ----------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The file with one context per cluster, named like it."""
        return self.plan.layout.kubeconfig

    @property
    def nats_url(self) -> str:
        """The URL of NATS; empty before the start."""
        return self._nats.url if self._nats else ""

    @property
    def redis_url(self) -> str:
        """The URL of Valkey; empty before the start."""
        return self._valkey.url if self._valkey else ""

    @property
    def api_url(self) -> str:
        """The URL of the query API; empty before it has written its port."""
        port = _read_port(api_port_file(self.plan.layout))
        return f"http://127.0.0.1:{port}" if port else ""

    @property
    def admin_url(self) -> str:
        """The URL of the admin endpoint of the clusters; empty before they run."""
        port = _read_port(admin_port_file(self.plan.layout.root))
        return f"http://127.0.0.1:{port}" if port else ""

    def state(self) -> StackState:
        """The present state, for `stack.json`."""
        interval = self.plan.progress_interval
        return StackState(
            phase="running",
            pid=os.getpid(),
            clusters=tuple(self.plan.names),
            behind_agents=tuple(self.plan.behind_agents),
            kubeconfig=str(self.kubeconfig),
            nats_url=self.nats_url,
            redis_url=self.redis_url,
            api_url=self.api_url,
            admin_url=self.admin_url,
            parts=tuple(self._part_states()),
            ready=tuple(self._ready),
            record=self.plan.record,
            secrets=self.plan.secrets,
            progress_seconds=interval.total_seconds() if interval is not None else None,
        )

    async def status(self) -> list[PartStatus]:
        """Every part and whether it is ready."""
        return await probe(self.state().parts)

    def ended(self) -> list[str]:
        """The names of the parts whose process is gone."""
        return [name for name in self._everyone() if not self._child(name).is_running]

    def last_words(self, name: str) -> str:
        """The last lines of a part's log."""
        return self._child(name).last_words()

    # --- breaking and mending -----------------------------------------------------------------

    def kill(self, name: str) -> None:
        """End a part with SIGKILL, as a crash would.

        Raises:
            KeyError: there is no such part.
        """
        self._child(name).kill()

    async def restart(self, name: str) -> None:
        """Start a part again, stopping it first if it runs; returns when it is ready.

        NATS keeps its streams; Valkey starts empty, because it has no file.

        Raises:
            KeyError: there is no such part.
            ChildError: it did not become ready, or it is the API server, whose clusters live in
                its memory.
        """
        if name == APISERVER:
            raise ChildError("the API server keeps its clusters in memory: start a new stack")
        if self._nats is not None and name == NATS:
            await self._restart_server(name, self._nats)
        elif self._valkey is not None and name == VALKEY:
            await self._restart_server(name, self._valkey)
        else:
            await self._restart_service(self._parts[name])

    # --- how ----------------------------------------------------------------------------------

    async def _restart_server(self, name: str, server: NatsServer | ValkeyServer) -> None:
        self._report(name, False)
        await server.restart()
        self._tell_ready(name)

    async def _restart_service(self, part: Part) -> None:
        child = self._children[part.name]
        await child.stop()
        _forget_ports(part)
        child.respawn()
        self._report(part.name, False)
        await self._wait_ready([part])

    def _clean_folder(self) -> None:
        # The emulated clusters start empty, so what an earlier run stored is of other clusters.
        layout = self.plan.layout
        stale = (layout.nats, layout.valkey, layout.run, layout.truth, layout.root / "logs")
        for folder in stale:
            shutil.rmtree(folder, ignore_errors=True)
        for file in (layout.kubeconfig, layout.hub_kubeconfig, layout.opened):
            file.unlink(missing_ok=True)
        layout.run.mkdir(parents=True)

    def _start_servers(self) -> None:
        layout = self.plan.layout
        self._nats = self._servers.enter_context(
            nats_server_blocking(store_dir=layout.nats, log=layout.log(NATS))
        )
        self._tell_ready(NATS)
        self._valkey = self._servers.enter_context(
            valkey_server_blocking(
                dir=layout.valkey,
                appendonly=True,
                log=layout.log(VALKEY),
                options=("--maxmemory", "1gb"),
            )
        )
        self._tell_ready(VALKEY)

    def _hold_port(self) -> int:
        """A port for the query API: kubeconfigs and open watches have it, so it stays the same."""
        held_port = HeldPort(LOOPBACK)
        self._servers.callback(held_port.release)
        return held_port.number

    async def _start_apiserver(self) -> None:
        self._report(APISERVER, False)
        child = Child(
            APISERVER,
            apiserver_command(self.plan),
            log=self.plan.layout.log(APISERVER),
            env=clean_environment(),
        )
        self._children[APISERVER] = child
        await child.wait_until(self.kubeconfig.exists, within=_APISERVER_PATIENCE)
        for name in self.plan.names:
            async with KubeClient(read_kube_config(self.kubeconfig, name)) as cluster:
                await _wait_answers(cluster, child)
        self._tell_ready(APISERVER)

    async def _open(self, path: Path) -> None:
        self._report(CAPTURE, False)
        opened = await open_capture(
            Capture.open(path),
            admin_url=self.admin_url,
            kubeconfig=self.kubeconfig,
            suspended=self.plan.suspended,
        )
        opened.write(self.plan.layout.opened)
        self._tell_ready(CAPTURE)

    def _start_services(self, *, needs_clusters: bool) -> None:
        for part in self._parts.values():
            if part.needs_clusters == needs_clusters:
                self._children[part.name] = self._spawn(part)

    def _spawn(self, part: Part) -> Child:
        self._report(part.name, False)
        _forget_ports(part)
        return Child(
            part.name,
            part.command,
            log=self.plan.layout.log(part.name),
            env=clean_environment() | dict(part.env),
        )

    async def _wait_ready(self, parts: Sequence[Part]) -> None:
        patience = Patience(_READY_PATIENCE)
        waiting = list(parts)
        async with aiohttp.ClientSession() as session:
            while waiting := [
                service for service in waiting if not await self._is_ready(session, service)
            ]:
                if patience.is_over(
                    tuple(self._children[service.name].progress() for service in waiting)
                ):
                    raise ChildError(await self._why_not_ready(session, waiting, patience))
                await asyncio.sleep(_POLL)
        for part in parts:  # one may have ended while the others were waited for
            self._children[part.name].raise_if_ended()

    async def _is_ready(self, session: aiohttp.ClientSession, part: Part) -> bool:
        if await problem_of(session, _ready_url(part)):
            self._children[part.name].raise_if_ended()
            return False
        self._tell_ready(part.name)
        return True

    async def _why_not_ready(
        self, session: aiohttp.ClientSession, waiting: Sequence[Part], patience: Patience
    ) -> str:
        problems = [
            f"{part.name} is not ready: {await problem_of(session, _ready_url(part))}"
            for part in waiting
        ]
        child = self._children[waiting[0].name]
        return (
            f"{'; '.join(problems)}; {patience.waited}; "
            f"the log {child.log} ends with:\n{child.last_words()}"
        )

    def _tell_ready(self, name: str) -> None:
        if name not in self._ready:
            self._ready.append(name)
        self._report(name, True)

    def _everyone(self) -> list[str]:
        servers = [
            name
            for name, server in ((NATS, self._nats), (VALKEY, self._valkey))
            if server is not None
        ]
        return [*servers, *self._children]

    def _child(self, name: str) -> Child:
        if self._nats is not None and name == NATS:
            return self._nats.child
        if self._valkey is not None and name == VALKEY:
            return self._valkey.child
        return self._children[name]

    def _part_states(self) -> list[PartState]:
        urls = {NATS: _tcp(self.nats_url), VALKEY: _tcp(self.redis_url)}
        urls |= {name: _ready_url(part) for name, part in self._parts.items()}
        if self.kubeconfig.exists():
            hub = server_of(read_kube_config(self.kubeconfig, self.plan.hub))
            urls[APISERVER] = f"tcp://{hub.partition('://')[2].partition('/')[0]}"
        children = [(name, self._child(name)) for name in self._everyone()]
        return [
            PartState(name=name, pid=child.pid, log=str(child.log), ready_url=urls.get(name, ""))
            for name, child in children
        ]


async def _wait_answers(cluster: KubeClient, child: Child) -> None:
    patience = Patience(_APISERVER_PATIENCE)
    while True:
        try:
            await cluster.get_json("/version")
        except KubeError:
            child.raise_if_ended()
            if patience.is_over(child.progress()):
                raise
            await asyncio.sleep(_POLL)
        else:
            return


def _ready_url(part: Part) -> str:
    port = _read_port(part.health_port_file)
    return f"http://127.0.0.1:{port}/readyz" if port else ""


def _read_port(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return 0


def _forget_ports(part: Part) -> None:
    for path in part.port_files:
        path.unlink(missing_ok=True)


def _tcp(url: str) -> str:
    return f"tcp://{url.partition('://')[2].partition('/')[0]}" if url else ""
