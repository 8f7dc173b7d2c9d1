"""The version before this one, installed into an environment of its own.

It is built from its commit: the last tag of a release, or, before there is one, `UNRELEASED`. A
commit is installed as the Dockerfile does it, from wheels of the tree and the lock of that commit,
so neither code nor libraries of this version are in it. FLEETBUS_UPGRADE_FROM names another commit.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from release.versions import ROOT
from support.processes.programs import find_uv

UNRELEASED: Final = "75be0d8d"
"""Stands for the version before as long as none is released."""
_GIT: Final = ("git", "-C", str(ROOT))
ENVIRONMENTS: Final = ROOT / ".tools" / "versions"
"""An installed version stays here: it takes a minute to build, and never changes."""


@dataclass(frozen=True)
class Version:
    """A version of fleetbus that can be started.

    Attributes:
        name: a tag or a commit.
        programs: the folder with its commands.
    """

    name: str
    programs: Path

    def program(self, name: str, *arguments: str) -> list[str]:
        """The command of one of its programs, like `fleetbus-watcher`."""
        return [str(self.programs / name), *arguments]


def version_before() -> Version:
    """Install the version before, unless it is there; skips the test where its commit is not."""
    name = os.environ.get("FLEETBUS_UPGRADE_FROM") or _last_tag() or UNRELEASED
    commit = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if not commit:
        pytest.skip(f"the version before, {name}, is not in this clone: fetch its whole history")
    folder = ENVIRONMENTS / commit
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            _install(commit, folder)
    return Version(name, folder / "bin")


def _last_tag() -> str:
    """The last release, which is not the present commit itself."""
    return _git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")


def _install(commit: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    tree = folder.with_suffix(".tree")
    shutil.rmtree(tree, ignore_errors=True)
    _git("worktree", "prune")
    subprocess.run([*_GIT, "worktree", "add", "-q", "--detach", str(tree), commit], check=True)
    try:
        words = ("sync", "-q", "--frozen", "--no-dev", "--all-packages", "--no-editable")
        environment = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
        environment |= {"UV_PROJECT_ENVIRONMENT": str(folder), "UV_COMPILE_BYTECODE": "1"}
        subprocess.run([find_uv(), *words], cwd=tree, env=environment, check=True)
    finally:
        subprocess.run([*_GIT, "worktree", "remove", "--force", str(tree)], check=True)
    (folder / "installed").touch()


def _git(*words: str) -> str:
    """Run a command of git; returns what it prints, empty if it fails."""
    ended = subprocess.run([*_GIT, *words], capture_output=True, text=True, check=False)
    return ended.stdout.strip() if ended.returncode == 0 else ""
