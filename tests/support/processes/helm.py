"""helm and kubectl as programs, and a real API server for them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.binaries import ProgramsMissingError, find_helm, find_programs
from e2e.planes import ADMIN_TOKEN, Plane
from support.api.rendered_chart import CHART, NAMESPACE, Object
from support.full import FULL


@dataclass(frozen=True)
class Helm:
    """The helm program, for one release of the chart.

    Attributes:
        program: where it is.
        folder: for values and helm's own files.
        kubeconfig: of the hub; a missing one for commands that need no cluster.
        namespace: of the release.
    """

    program: Path
    folder: Path
    kubeconfig: Path = Path("/nonexistent")
    namespace: str = NAMESPACE

    def run(self, *arguments: str | Path, values: Object | None = None) -> tuple[int, str]:
        """Run a command; returns the status and the output."""
        file = self.folder / "values.json"
        file.write_text(json.dumps(values or {}))
        flags = ["--values", file] if values is not None else []
        done = subprocess.run(
            [self.program, *arguments, *flags, "--namespace", self.namespace],
            env={"HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def done(self, *arguments: str | Path, values: Object | None = None) -> str:
        """Run a command that has to succeed."""
        status, output = self.run(*arguments, values=values)
        assert status == 0, output
        return output

    def upgrade(self, values: Object, chart: Path = CHART) -> None:
        """Install the release, or upgrade it."""
        self.done("upgrade", "--install", "--create-namespace", "fb", chart, values=values)


@dataclass(frozen=True)
class Kubectl:
    """kubectl, as the administrator of the hub."""

    program: Path
    kubeconfig: Path

    def run(self, *arguments: str, text: str = "") -> tuple[int, str]:
        """Run a command; returns the status and the output."""
        done = subprocess.run(
            [self.program, "--kubeconfig", self.kubeconfig, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def list(self, kinds: str, *arguments: str) -> list[dict[str, Any]]:
        """The objects of these kinds."""
        status, output = self.run("get", kinds, "-o", "json", *arguments)
        assert status == 0, output
        return json.loads(output)["items"]


def helm_program(folder: Path, kubeconfig: Path = Path("/nonexistent")) -> Helm:
    """Helm, built where Go is; skips the test where it is missing."""
    try:
        program = find_helm(may_build=FULL)
    except ProgramsMissingError as e:
        pytest.skip(str(e))
    return Helm(program, folder, kubeconfig)


@asynccontextmanager
async def real_hub(folder: Path, *, controllers: bool = False) -> AsyncGenerator[Kubectl]:
    """A real API server, if wanted with controllers; skips the test where none can be had."""
    try:
        programs = find_programs()
    except ProgramsMissingError as e:
        pytest.skip(str(e))
    plane = Plane("hub", folder / "hub", programs)
    try:
        await plane.start()
        if controllers:
            await plane.start_controllers()
        yield Kubectl(programs / "kubectl", plane.write_kubeconfig("admin", token=ADMIN_TOKEN))
    finally:
        await plane.aclose()
