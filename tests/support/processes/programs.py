"""The commands of processes that tests start: installed programs, and modules of the tests."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

_RUN = Path(__file__).parents[2] / "run.py"


def installed(name: str, *arguments: str) -> list[str]:
    """The command of a program of ours, like `fleetbus-watcher`."""
    return [str(Path(sysconfig.get_path("scripts"), name)), *arguments]


def module(name: str, *arguments: str) -> list[str]:
    """The command of a module of the tests that runs on its own, like `bench.canned_apiserver`."""
    return [sys.executable, str(_RUN), name, *arguments]


def find_uv() -> str:
    """The path of uv; skips the test where there is none."""
    installed_uv = _RUN.parents[1] / ".tools" / "bin" / "uv"
    program = shutil.which("uv") or shutil.which(installed_uv)
    return program or pytest.skip("uv is missing: `make install` brings it")
