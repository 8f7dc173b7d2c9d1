"""The emulator's wheel in an environment of its own, without fleetbus."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.programs import find_uv

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "scripts" / "emulator_alone.py"


def run(*command: str | Path) -> str:
    """Run a command of uv; a package that is not in its cache skips the test, and is named."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and "network was disabled" in done.stderr:
        pytest.skip(f"not in the cache of uv: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.full
def test_the_wheel_works_without_fleetbus(tmp_path: Path):
    python = tmp_path / "venv" / "bin" / "python"
    run(find_uv(), "build", "--offline", "--wheel", "--out-dir", tmp_path, "emulator")
    (wheel,) = tmp_path.glob("*.whl")
    export = ("export", "--offline", "--frozen", "--no-dev", "--no-hashes", "--no-emit-workspace")
    locked = run(find_uv(), *export, "--package", "fleetbus-emulator", "--extra", "pytest")
    (tmp_path / "locked.txt").write_text(locked)
    run(find_uv(), "venv", "--offline", "--python", sys.executable, tmp_path / "venv")
    install = ("pip", "install", "--offline", "--no-deps", "--python", python)
    run(find_uv(), *install, "-r", tmp_path / "locked.txt", wheel)
    run(find_uv(), "pip", "check", "--python", python)

    shutil.copy(TESTS, tmp_path / "test_it.py")
    test = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert test.returncode == 0, test.stdout + test.stderr
    assert "3 passed" in test.stdout
