"""/healthz, /readyz and /metrics for any process.

A process is alive while each registered loop makes progress, ready when each check passes.
"""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from prometheus_client.exposition import choose_encoder

from fleetbus.errors import ConfigError
from fleetbus.process.loopback import is_loopback
from fleetbus.process.release import release
from fleetbus.process.settings import write_port_file

log = structlog.get_logger()

_BUILD_INFO: Final = Gauge(
    "fleetbus_build_info",
    "Always 1; its labels are the version and the commit that the process runs.",
    ["version", "commit"],
)
_TASKS: Final = Gauge(
    "fleetbus_event_loop_tasks",
    "Tasks of the event loop that have not ended: bounded, whatever comes and goes.",
)
Check = Callable[[], str]
"""Returns the problem, or an empty string."""


class Health:
    """The health endpoints of one process.

    Args:
        registry: the metrics for /metrics.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._ready: dict[str, Check] = {}
        self._alive: dict[str, Check] = {}

    def ready_when(self, name: str, check: Check) -> None:
        """Register a readiness check."""
        self._ready[name] = check

    def starting(self) -> Callable[[], None]:
        """Be not ready until the returned function is called: not all checks are registered yet."""
        self._ready["start"] = lambda: "not started yet"
        return lambda: self._ready.pop("start", None) and None

    def liveness(self, name: str, within: timedelta) -> Callable[[], None]:
        """Register a loop, which calls the returned function at least every `within`.

        When it does not, the process should be restarted.
        """
        last = [time.monotonic()]

        def beat() -> None:
            last[0] = time.monotonic()

        def check() -> str:
            age = time.monotonic() - last[0]
            return "" if age <= within.total_seconds() else f"no progress for {age:.0f} s"

        self._alive[name] = check
        return beat

    @property
    def is_ready(self) -> bool:
        """Whether every readiness check passes."""
        return not self.problems()

    def problems(self) -> dict[str, str]:
        """Why the process is not ready, by check."""
        return _problems(self._ready)

    @asynccontextmanager
    async def serve(
        self, host: str, port: int, port_file: pathlib.Path | None = None
    ) -> AsyncGenerator[int]:
        """Serve the three paths; yields the port.

        Raises:
            ConfigError: cannot listen on the address, or write the port file.
        """
        runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.5)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            try:
                await site.start()
            except OSError as e:
                raise ConfigError(f"the health server cannot listen on {host}:{port}: {e}") from e
            chosen = int(runner.addresses[0][1])
            await asyncio.to_thread(write_port_file, port_file, chosen)
            running = release()
            _BUILD_INFO.labels(running.version, running.commit).set(1)
            log.info("health_served", host=host, port=chosen, **running._asdict())
            yield chosen
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/metrics":
            _TASKS.set(len(asyncio.all_tasks()))
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
            return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})
        checks = {"/healthz": self._alive, "/readyz": self._ready}.get(request.path)
        if checks is None:
            return web.Response(status=404, text="paths: /healthz /readyz /metrics\n")
        problems = _problems(checks)
        if not is_loopback(request.remote or ""):
            # Anybody who reaches the port may ask, and a problem may name addresses.
            problems = dict.fromkeys(problems, "failed; the reason is shown to loopback only")
        lines = [f"{name}: {problem}\n" for name, problem in problems.items()] or ["ok\n"]
        return web.Response(status=503 if problems else 200, text="".join(lines))


def _problems(checks: dict[str, Check]) -> dict[str, str]:
    problems = {name: check() for name, check in checks.items()}
    return {name: problem for name, problem in problems.items() if problem}
