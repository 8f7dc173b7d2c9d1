"""Tests for an environment with the emulator and nothing else of ours (`test_wheel.py`)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from fleetbus_emulator.apiserver import Fail


def test_nothing_of_fleetbus_is_here() -> None:
    names = ("fleetbus", "fleetbus_proto", "fleetbus_devfleet")
    assert [name for name in names if importlib.util.find_spec(name)] == []


@pytest.mark.fleet(["alpha", "beta"])
def test_the_fixtures_serve_clusters_that_misbehave(fleet: Any, cluster: Any, fault: Any) -> None:
    assert cluster.name == "alpha"
    fault("beta", Fail(status=503), verb="list")
    with urlopen(f"{fleet['alpha'].url}/api/v1/pods") as answer:
        assert answer.status == 200
    with pytest.raises(OSError, match="503"):
        urlopen(f"{fleet['beta'].url}/api/v1/pods")


def test_a_process_serves_clusters(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fleetbus_emulator",
        "--clusters",
        "a,b",
        "--dir",
        str(tmp_path),
    ]
    process = subprocess.Popen(command)
    try:
        while not (tmp_path / "kubeconfig").exists():
            assert process.poll() is None
            time.sleep(0.05)  # between two looks
    finally:
        process.terminate()
    assert process.wait() == 0
