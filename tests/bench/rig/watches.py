"""The peers of the latency benchmarks: programs that watch a cluster with no bus and no store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.rig.processes import cpu_seconds
from support.processes.programs import module


@dataclass
class Peer:
    """A running peer.

    Attributes:
        latencies: each run's (time of the change, seconds to its start), once it has ended.
    """

    pid: int
    latencies: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def cpu(self) -> float:
        """The CPU seconds that it has used."""
        return cpu_seconds(self.pid)

    def between(self, begin: float, end: float) -> list[float]:
        """The latencies of changes of this time."""
        return [latency for at, latency in self.latencies if begin <= at < end]


def typed_watch(kubeconfig: Path) -> list[str]:
    """The command of kubernetes_asyncio's Watch with typed models and a queue in memory."""
    return module("bench.programs.latency_baseline", str(kubeconfig))


@asynccontextmanager
async def watching(command: Sequence[str]) -> AsyncGenerator[Peer]:
    """A peer that watches; its latencies are there after the block."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"watching\n"
    peer = Peer(process.pid)
    try:
        yield peer
    finally:
        process.terminate()
        answer, _ = await process.communicate()
    for line in answer.decode().splitlines():
        at, latency = line.split()
        peer.latencies.append((float(at), float(latency)))
