"""Provider `kind`: the clusters of kind on this machine, for development."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.mirror import SkippedEntries
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import KubeConfig, check_access
from fleetbus_proto.errors import InvalidName

log = structlog.get_logger()

EVERY: Final = timedelta(seconds=2)
_PATIENCE: Final = timedelta(seconds=30)


class KindProvider:
    """Clusters that `kind get clusters` lists.

    Args:
        only_prefix: use only clusters with this prefix in their name.
        every: how often kind is called.

    Raises:
        ConfigError: kind is not installed.
    """

    name = "kind"

    def __init__(self, *, only_prefix: str = "", every: timedelta = EVERY) -> None:
        program = shutil.which("kind")
        if program is None:
            raise ConfigError("provider 'kind': the program kind is not on the PATH")
        self._program = program
        self._only_prefix = only_prefix
        self._every = every
        self._skipped = SkippedEntries(self.name)

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield all clusters whenever one was added, removed or has another kubeconfig."""
        last: list[ClusterInfo] | None = None
        while True:
            try:
                infos = await self._read()
            except ConfigError as e:
                log.warning("kind_failed", error=str(e))  # the last set stays valid
            else:
                if infos != last:
                    last = infos
                    yield infos
            await asyncio.sleep(self._every.total_seconds())

    async def _read(self) -> list[ClusterInfo]:
        listed = (await self._ask("get", "clusters")).split()
        infos: list[ClusterInfo] = []
        reasons: dict[str, str] = {}
        for name in sorted(listed):
            if not name.startswith(self._only_prefix):
                continue
            try:
                infos.append(await self._info(name))
            except InvalidName as e:
                reasons[name] = str(e)
        self._skipped.report(reasons)
        return infos

    async def _info(self, name: str) -> ClusterInfo:
        config: KubeConfig | None = None
        problem = ""
        try:
            document = await self._ask("get", "kubeconfig", "--name", name)
            # kind's clusters are on this machine.
            config = KubeConfig(document, source=f"kind cluster {name}", own=True)
            check_access(config)
        except ConfigError as e:  # one that is being created or deleted does not affect the others
            config, problem = None, str(e)
        return ClusterInfo(name=name, provider=self.name, config=config, problem=problem)

    async def _ask(self, *args: str) -> str:
        command = f"kind {' '.join(args)}"
        process = await asyncio.create_subprocess_exec(
            self._program, *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_PATIENCE.total_seconds()):
                out, err = await process.communicate()
        except TimeoutError as e:
            raise ConfigError(f"{command}: no answer within {_PATIENCE.total_seconds():g} s") from e
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            last = err.decode(errors="replace").strip().rpartition("\n")[2]
            raise ConfigError(f"{command}: {last or f'exit status {process.returncode}'}")
        return out.decode(errors="replace")
