"""docs/from-multi-resource-operator.md does what it says, on a fleet of its own (T19, T20)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.page_console import Terminal, clone_of, read_steps

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "from-multi-resource-operator.md"
FLEETBUS = Path(sys.executable).with_name("fleetbus")
LATER = ("list clusters --name", "list pods")
"""Commands that show what takes a moment."""


@pytest.mark.full
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl is installed")
@pytest.mark.timeout(240)
def test_every_command_of_the_page_says_what_the_page_shows(tmp_path: Path) -> None:
    with clone_of(ROOT, tmp_path) as clone:
        terminal = Terminal(
            clone,
            replaced={"make up": f"{FLEETBUS} dev up"},
            is_repeated=lambda command: any(words in command for words in LATER),
        )
        try:
            for step in read_steps(PAGE):
                terminal.follow(step)
        finally:
            terminal.aclose()
            subprocess.run([FLEETBUS, "dev", "down"], cwd=clone, capture_output=True, check=False)
