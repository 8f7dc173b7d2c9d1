"""docs/tutorial.md does what it says, on a fleet of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.page_console import Terminal, clone_of, read_steps

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
FLEETBUS = Path(sys.executable).with_name("fleetbus")


@pytest.mark.full
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl is installed")
@pytest.mark.timeout(240)
def test_every_command_of_the_tutorial_says_what_the_page_shows(tmp_path: Path) -> None:
    # `make up` might install something, which must not happen in a folder of links.
    assert re.search(
        r"^up: .*\n\t\$\(RUN\) fleetbus dev up$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    with clone_of(ROOT, tmp_path) as clone:
        terminal = Terminal(
            clone,
            replaced={"make up": f"{FLEETBUS} dev up"},
            stays=lambda command: command.startswith("fleetbus run"),
            is_repeated=lambda command: "get configmap " in command or " explain " in command,
        )
        try:
            *steps, stop = read_steps(PAGE)
            for step in steps:
                terminal.follow(step)
            why = re.search(r"the first terminal says why: `(.*?)`", PAGE.read_text())
            assert why is not None
            assert why[1] in terminal.log.read_text()
            assert terminal.interrupt() == [0]
            terminal.follow(stop)
        finally:
            terminal.aclose()
            subprocess.run([FLEETBUS, "dev", "down"], cwd=clone, capture_output=True, check=False)
