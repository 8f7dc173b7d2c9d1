"""The steps of the Dockerfile, executed on this host, make an image that holds production alone."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from layout.test_production import PRODUCTION, production_closure
from reference.agent_manifest import render_agent
from support.api.rendered_chart import VALUES, pods, render
from support.full import FULL
from support.processes.host_build import ROOT, HostBuild, read_steps

PROGRAMS = {
    "fleetbus": "Usage: fleetbus",
    "kubectl-multicluster": "usage: kubectl-multicluster",
    "fleetbus-watcher": "usage: fleetbus-watcher",
    "fleetbus-reconciler": "usage: fleetbus-reconciler",
    "fleetbus-distributor": "usage: fleetbus-distributor",
    "fleetbus-query-api": "usage: fleetbus-query-api",
    "fleetbus-archiver": "usage: fleetbus-archiver",
    "fleetbus-agent": "usage: fleetbus-agent",
    "fleetbus-nats-reloader": "usage: fleetbus-nats-reloader",
}


def build(folder: Path) -> HostBuild:
    """Build the image; `make test` does without bytecode and copies, which take most time."""
    faster = {"UV_COMPILE_BYTECODE": "0", "UV_LINK_MODE": "hardlink"}
    image = HostBuild(folder, overrides={} if FULL else faster)
    image.execute(read_steps(ROOT / "Dockerfile"))
    return image


def contents(root: Path) -> dict[str, str]:
    """Every file of the image with the hash of its content, every link with its target."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def run(image: HostBuild, program: str) -> str:
    """Run a program of the image with the image's environment; bytecode that it lacks is shared."""
    elsewhere = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{image.root}-bytecode"}
    done = subprocess.run(
        [image.root / "app" / "bin" / program, "--help"],
        cwd="/",
        env=image.environment | ({} if FULL else elsewhere),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.full
def test_the_image_holds_production_alone_and_its_programs_write_nothing_there(tmp_path: Path):
    image = build(tmp_path)
    before = contents(image.root)
    names = {re.sub(r"[-_.]+", "-", one) for one in _distributions(image.root)}
    assert names >= set(PRODUCTION)
    assert names <= production_closure()
    assert [name for name in before if "/fleetbus" in name and _is_test(name)] == []
    # Neither the sources nor the tools of the build are in it, and nothing is installed by a link.
    assert {name.split("/")[0] for name in before} == {"app"}
    assert [name for name in before if name.endswith(".pth")] == []
    assert image.user == "10001:10001"
    for path in image.root.rglob("*"):
        assert path.is_symlink() or not path.stat().st_mode & 0o022, f"{path} is for all to write"
    # Each takes two seconds of CPU to start; `make scenarios` starts them all.
    for program in PROGRAMS if FULL else ("fleetbus", "fleetbus-watcher"):
        assert PROGRAMS[program] in run(image, program)
    assert contents(image.root) == before


def test_the_charts_start_no_other_programs_of_the_image():
    hub = render({**VALUES["everything"], "agents": {"enabled": True}})
    member = {
        "cluster": "eu7",
        "nats": {"url": "tls://n:4222"},
        "registration": {"secretName": "s"},
    }
    started = {
        container["command"][0]
        for _, spec in pods([*hub, *render_agent(member)])
        for container in spec["containers"]
        if "fleetbus" in container["image"]
    }
    assert {"fleetbus-agent", "fleetbus-nats-reloader"} <= started
    assert started - {"python"} <= PROGRAMS.keys()


@pytest.mark.timeout(300)
@pytest.mark.full
def test_s10_two_builds_are_the_same_to_the_byte(tmp_path: Path):
    first, second = tmp_path / "image", tmp_path / "first"
    before = contents(build(first).root)
    first.rename(second)
    assert contents(build(first).root) == before
    assert any(name.endswith(".pyc") for name in before)


def test_s10_an_image_that_is_named_by_its_tag_is_refused(tmp_path: Path):
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("ARG PYTHON_IMAGE=python:3.12-slim\nFROM ${PYTHON_IMAGE}\n")
    with pytest.raises(ValueError, match="no image by digest"):
        HostBuild(tmp_path).execute(read_steps(dockerfile))


def _distributions(root: Path) -> list[str]:
    found = [path.name for path in root.glob("app/lib/python*/site-packages/*.dist-info")]
    return [name.partition("-")[0].lower() for name in found]


def _is_test(name: str) -> bool:
    """Whether a file is a test; the project that `fleetbus new` copies has one on purpose."""
    file = name.rpartition("/")[2]
    return "cli/new_project/" not in name and file.startswith(("test_", "conftest"))
