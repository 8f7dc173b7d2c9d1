"""Programs of others that are written in Go, built once into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def go_tool(package: str, version: str) -> Path:
    """A program, like `sigs.k8s.io/krew/cmd/krew`; skips the test where it cannot be built."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = package.rpartition("/")[2]
    program = Path(root, "fleetbus", f"{name}-{version}", name)
    if not program.exists():
        if shutil.which("go") is None:
            pytest.skip(f"{name} is missing: install Go, and it is built")
        environment = os.environ | {"GOBIN": str(program.parent), "GOFLAGS": "-mod=mod"}
        command = ("go", "install", f"{package}@{version}")
        subprocess.run(command, cwd="/", env=environment, check=True, capture_output=True)
    return program
