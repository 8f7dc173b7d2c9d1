"""The packages of a release, from an index into environments that know nothing of this clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from fleetbus_cli import app
from release.dist import build
from release.versions import ROOT, version
from support.processes.programs import find_uv
from support.servers.package_index import package_index

THIS: Final = "{}.{}".format(*sys.version_info)
_PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_OURS: Final = ("FLEETBUS_", "PIP_FIND_LINKS", "PYTEST", "PYTHON", "UV_", "VIRTUAL_ENV")


def run(*words: str | Path, cwd: Path, status: int = 0) -> str:
    """Run a program that finds nothing of this clone, and return what it printed."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}
    ended = subprocess.run(
        words,
        cwd=cwd,
        env={**clean, "HOME": str(cwd), "PATH": "/usr/bin:/bin", "UV_SYSTEM_CERTS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


class Published(NamedTuple):
    """A release in an index."""

    address: str
    files: Path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Generator[Published]:
    """The packages of this clone, uploaded to an index."""
    uv, files = find_uv(), tmp_path_factory.mktemp("dist") / "dist"
    build(files, uv)
    with package_index(tmp_path_factory.mktemp("index")) as address:
        upload(uv, address, files)
        yield Published(address, files)


def upload(uv: str, address: str, files: Path, status: int = 0) -> str:
    """Publish all files of a folder, as the workflow does."""
    words = (uv, "publish", "--publish-url", f"{address}/", "--username", "a", "--password", "b")
    return run(*words, *sorted(files.glob("fleetbus*")), cwd=files, status=status)


def interpreter(python: str) -> Path:
    """The path of an interpreter that is installed on this machine, with apt or pyenv."""
    if python == THIS:
        return Path(sys.executable)
    folders = (Path("/usr/bin"), *Path.home().glob(f".pyenv/versions/{python}.*/bin"))
    found = [path for folder in folders if (path := folder / f"python{python}").exists()]
    return found[0] if found else pytest.skip(f"python{python} is missing: apt or pyenv has it")


class Environment:
    """A virtual environment outside the clone."""

    def __init__(self, folder: Path, index: str, python: str) -> None:
        self.folder = folder
        run(find_uv(), "venv", "-q", "--seed", "-p", interpreter(python), "venv", cwd=folder)
        self._index = index

    def pip(self, *words: str, cwd: Path | None = None, status: int = 0) -> str:
        """Install with pip, from the index."""
        install = ("-m", "pip", "install", "-q", "--index-url", f"{self._index}/simple")
        return self.run("python", *install, *words, cwd=cwd, status=status)

    def run(self, program: str, *words: str, cwd: Path | None = None, status: int = 0) -> str:
        """Run a program of the environment."""
        path = self.folder / "venv" / "bin" / program
        return run(path, *words, cwd=cwd or self.folder, status=status)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("python", _PYTHONS)
def test_pip_brings_the_demo_a_fleet_and_a_project_with_its_test(
    python: str, published: Published, tmp_path: Path
):
    there = Environment(tmp_path, published.address, python)
    there.pip("fleetbus[dev]")
    assert there.run("fleetbus", "--version").startswith(f"fleetbus {version()} (")
    assert "from a clone" not in there.run("fleetbus", "--version")
    assert "claims held" in there.run("fleetbus", "demo", "--instant", "--orders", "20")
    there.run("fleetbus", "new", "my-operator")
    project = tmp_path / "my-operator"
    there.pip("-e", ".[test]", cwd=project)
    assert "1 passed" in there.run("python", "-m", "pytest", "-q", cwd=project)
    there.run("fleetbus", "dev", "up")
    try:
        assert "eu1" in there.run("fleetbus", "clusters")
    finally:
        there.run("fleetbus", "dev", "down")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_command_line_alone_names_what_is_missing_and_how_to_install_it(
    published: Published, tmp_path: Path
):
    there = Environment(tmp_path, published.address, THIS)
    there.pip("fleetbus")
    for words, extra in (
        (("demo",), "fleetbus[dev]"),
        (("dev", "up"), "fleetbus[dev]"),
        (("plan", "x.yaml"), "fleetbus-distributor"),
    ):
        shown = there.run("fleetbus", *words, status=2)
        assert shown == f"fleetbus: `{words[0]}` is not installed: pip install '{extra}'\n"
    (tmp_path / "test_it.py").write_text(
        "import asyncio, fleetbus\nfrom fleetbus.testing import controller_test\n"
        "async def main():\n"
        "    async with controller_test(fleetbus.Controller('x'), clusters=['a']): pass\n"
        "asyncio.run(main())\n"
    )
    assert "pip install 'fleetbus[dev]'" in there.run("python", "test_it.py", status=1)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_parts_of_another_release_are_refused_with_the_command_that_mends_it(
    published: Published, tmp_path: Path
):
    there = Environment(tmp_path, published.address, THIS)
    there.pip("fleetbus", "fleetbus-watcher")
    (installed,) = (tmp_path / "venv").glob("lib/*/site-packages/fleetbus_proto-*.dist-info")
    metadata = installed / "METADATA"
    metadata.write_text(re.sub("(?m)^Version: .*$", "Version: 0.0.9", metadata.read_text()))
    expected = f"pip install fleetbus-proto=={version()} fleetbus-sdk=={version()}"
    for program in (("fleetbus-watcher",), ("fleetbus", "--version")):
        shown = there.run(*program, status=2)
        assert "parts of different releases are installed: fleetbus-proto 0.0.9," in shown
        assert expected in shown


@pytest.mark.full
def test_an_index_that_has_a_file_of_this_name_refuses_the_upload(published: Published):
    refused = upload(find_uv(), published.address, published.files, status=2)
    assert "409" in refused


def _nothing(*, group: str) -> EntryPoints:
    del group
    return EntryPoints()


@pytest.mark.parametrize("word", ["demo", "dev", "rehearse", "plan", "rollout"])
def test_a_command_of_a_package_that_is_missing_names_it(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(app, "entry_points", _nothing)
    monkeypatch.setattr("sys.argv", ["fleetbus", word])
    with pytest.raises(SystemExit) as ended:
        app.run_command_line()
    package = "fleetbus-distributor" if word in {"plan", "rollout"} else "fleetbus[dev]"
    assert ended.value.code == 2
    expected = f"`{word}` is not installed: pip install '{package}'"
    assert expected in capsys.readouterr().err


def test_each_package_has_the_licence_of_the_project():
    for member in ("proto", "sdk", "cli", "emulator", "devfleet", *ROOT.glob("services/*")):
        assert (ROOT / member / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes(), member
