"""The plugin for krew finds an installed fleetbus, has it fetched, or says what to install."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from release.krew import write_plugin
from release.versions import version
from support.processes.go_tools import go_tool

KREW = "sigs.k8s.io/krew/cmd"
RELEASE = "v0.4.3"
_SHELL = ("sh", "dirname", "readlink")


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The script of the archive."""
    archive, _ = write_plugin(tmp_path)
    shutil.unpack_archive(archive, tmp_path / "plugin", filter="data")
    return tmp_path / "plugin" / "kubectl-multicluster"


def call(plugin: Path, path: Path) -> tuple[int, str]:
    for name in _SHELL:
        (path / name).symlink_to(str(shutil.which(name)))
    ended = subprocess.run(
        [plugin, "list", "a b"],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    path.chmod(0o755)


def test_an_installed_fleetbus_is_used_wherever_its_link_is(plugin: Path, tmp_path: Path):
    for name in ("fleetbus", "kubectl-multicluster"):
        program(tmp_path / "venv" / name)
    path = tmp_path / "bin"
    path.mkdir()
    (path / "fleetbus").symlink_to(tmp_path / "venv" / "fleetbus")
    assert call(plugin, path) == (0, "list\na b\n")


@pytest.mark.parametrize("fetcher", ["uv", "pipx"])
def test_without_one_this_version_is_fetched(fetcher: str, plugin: Path, tmp_path: Path):
    program(tmp_path / "bin" / fetcher)
    status, shown = call(plugin, tmp_path / "bin")
    assert status == 0
    assert shown.splitlines()[-4:] == [
        f"fleetbus=={version()}",
        "kubectl-multicluster",
        "list",
        "a b",
    ]


def test_with_nothing_at_hand_it_says_what_to_install(plugin: Path, tmp_path: Path):
    (tmp_path / "bin").mkdir()
    status, shown = call(plugin, tmp_path / "bin")
    assert status == 1
    assert f"pip install fleetbus=={version()}, or install uv or pipx" in shown


def test_the_manifest_names_the_archive_by_its_digest_and_two_builds_are_the_same(tmp_path: Path):
    archive, manifest = write_plugin(tmp_path)
    (platform,) = yaml.safe_load(manifest.read_text())["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"].endswith(f"/v{version()}/{archive.name}")
    before = archive.read_bytes()
    assert write_plugin(tmp_path)[0].read_bytes() == before


@pytest.mark.full
@pytest.mark.timeout(600)
def test_krew_accepts_the_manifest_and_installs_the_plugin(tmp_path: Path):
    archive, manifest = write_plugin(tmp_path)
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "KREW_ROOT": str(tmp_path / "krew")}
    subprocess.run(
        (
            go_tool(f"{KREW}/validate-krew-manifest", RELEASE),
            "-manifest",
            manifest,
            "-skip-install",
        ),
        env=home,
        check=True,
        capture_output=True,
    )
    local = ("install", "--manifest", manifest, "--archive", archive)
    subprocess.run(
        (go_tool(f"{KREW}/krew", RELEASE), *local), env=home, check=True, capture_output=True
    )
    installed = tmp_path / "krew" / "bin" / "kubectl-multicluster"
    path = tmp_path / "bin"
    program(path / "uv")
    assert call(installed, path)[0] == 0
