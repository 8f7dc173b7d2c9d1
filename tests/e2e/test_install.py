"""docs/install.md on emulated clusters, as a part of `make scenarios`.

`make e2e` follows it on real control planes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from e2e.binaries import ProgramsMissingError, find_helm, find_programs
from support.kubelet.images import missing_store
from support.kubelet.isolation import isolated, missing
from support.processes.programs import module

pytestmark = pytest.mark.full


def test_the_install_section_works_on_emulated_clusters(tmp_path: Path):
    try:
        find_programs()
        find_helm(may_build=True)
    except ProgramsMissingError as e:
        pytest.skip(str(e))
    if reason := missing() or missing_store():
        pytest.skip(reason)
    command = isolated(*module("e2e.install", "--emulated", "--keep", str(tmp_path / "logs")))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
