"""A real kubectl before an emulated cluster with its controllers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.support.kube_calls import deployment, widget_definition
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.controllers import simulate
from support.processes.kubectls import GIVEN, chosen, kubectls

# The newest kubectl alone tells most of the story, and all of it takes half a minute.
thorough = pytest.mark.skipif(GIVEN not in os.environ, reason=f"a second long; set {GIVEN}=all")
AT_ONCE = max(2, os.cpu_count() or 2)
PATIENCE_SECONDS = 30.0
WEB = deployment("web", replicas=2)
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
}
SETTINGS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings"},
    "data": {"a": "1"},
}


@dataclass(frozen=True)
class Said:
    """The output of a kubectl, and its exit status."""

    command: str
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The table that was printed, cell by cell, without its head."""
        return [line.split() for line in self.out.splitlines()[1:] if line]

    @property
    def head(self) -> list[str]:
        """The names of the columns."""
        return self.out.split("\n", 1)[0].split("  ")


class Kubectl:
    """Runs one kubectl with one kubeconfig; a few at once, not more than there are cores."""

    def __init__(self, binary: Path, version: str, folder: Path, cluster: Cluster) -> None:
        self.version = tuple(int(number) for number in version.split("."))
        self.cluster = cluster
        self.folder = folder
        self._binary = binary
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def try_(self, *arguments: str, stdin: str = "") -> Said:
        """Run a command, whatever comes of it."""
        async with self._slots:
            process = await self.start(*arguments)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    out, err = await process.communicate(stdin.encode())
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        status = process.returncode
        assert status is not None
        return Said(" ".join(arguments), status, out.decode(), err.decode())

    async def __call__(self, *arguments: str, stdin: str = "") -> Said:
        """Run a command that must succeed."""
        ended = await self.try_(*arguments, stdin=stdin)
        assert ended.status == 0, f"kubectl {ended.command}: {ended.err or ended.out}"
        return ended

    async def refused(self, *arguments: str, stdin: str = "") -> str:
        """Run a command that must fail; returns why it did."""
        ended = await self.try_(*arguments, stdin=stdin)
        assert ended.status != 0, f"kubectl {ended.command}: {ended.out}"
        return ended.err

    async def all(self, *commands: Sequence[str]) -> list[Said]:
        """Run commands that do not depend on each other; all must succeed."""
        return list(await asyncio.gather(*(self(*command) for command in commands)))

    async def apply(self, *objects: dict[str, Any], options: Sequence[str] = ()) -> Said:
        """Apply objects."""
        return await self("apply", *options, "-f", "-", stdin=yaml.safe_dump_all(objects))

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start a command, for example one that watches."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "KUBE_EDITOR": str(self.folder / "editor"),
            "TMPDIR": str(self.folder),
        }
        return await asyncio.create_subprocess_exec(
            self._binary,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.folder,
            env=environment,
        )


@asynccontextmanager
async def kubectl_before_a_cluster(
    binary: Path, version: str, folder: Path
) -> AsyncGenerator[Kubectl]:
    """A kubectl whose current context is a new cluster with two nodes."""
    cluster = Cluster("alpha", seed=1)
    async with serve([cluster]) as servers, simulate(cluster, seed=1) as (simulator,):
        servers.write_kubeconfig(folder / "kubeconfig")
        await simulator.settled()
        yield Kubectl(binary, version, folder, cluster)


@pytest.fixture(params=chosen() or ["none"])
async def kubectl(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """The newest kubectl; with FLEETBUS_KUBECTLS each of them."""
    version: str = request.param
    if version not in kubectls():
        pytest.skip("no kubectl is installed")
    async with kubectl_before_a_cluster(kubectls()[version], version, tmp_path) as ready:
        yield ready


async def define_widgets(kubectl: Kubectl) -> None:
    """Let there be widgets."""
    definition = widget_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["description"] = "What is wanted."
    await kubectl.apply(definition)
    await kubectl("wait", "--for=condition=Established", "crd/widgets.example.com")
