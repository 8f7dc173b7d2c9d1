"""The emulator's wheel in an environment of its own, without fleetbus."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "scripts" / "emulator_alone.py"


def uv() -> str:
    found = shutil.which("uv") or shutil.which(ROOT / ".tools" / "bin" / "uv")
    return found or pytest.skip("uv is missing: `make install` brings it")


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
    run(uv(), "build", "--offline", "--wheel", "--out-dir", tmp_path, "emulator")
    (wheel,) = tmp_path.glob("*.whl")
    export = ("export", "--offline", "--frozen", "--no-dev", "--no-hashes", "--no-emit-workspace")
    locked = run(uv(), *export, "--package", "fleetbus-emulator", "--extra", "pytest")
    (tmp_path / "locked.txt").write_text(locked)
    run(uv(), "venv", "--offline", "--python", sys.executable, tmp_path / "venv")
    install = ("pip", "install", "--offline", "--no-deps", "--python", python)
    run(uv(), *install, "-r", tmp_path / "locked.txt", wheel)
    run(uv(), "pip", "check", "--python", python)

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
