"""Writes the commit of the sources into what is built, as `fleetbus/COMMIT`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLACE = "fleetbus/COMMIT"


class CommitHook(BuildHookInterface[Any]):
    """Runs at each build of a wheel or an sdist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, unless a clone is installed in place or the sources are an sdist."""
        if version == "editable" or Path(self.root, _PLACE).exists():
            return
        commit = os.environ.get("FLEETBUS_COMMIT") or _head(self.root)
        if commit:
            folder = Path(tempfile.mkdtemp(prefix="fleetbus-commit-"))
            file = folder / "COMMIT"
            file.write_text(f"{commit}\n", encoding="utf-8")
            build_data["force_include"][str(file)] = _PLACE


def _head(root: str) -> str:
    """The commit that is checked out; empty without git or a clone."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 -- whichever git builds this
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""
