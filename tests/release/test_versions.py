"""One version everywhere, and a process that says which it is."""

from __future__ import annotations

from importlib import metadata

import pytest

from fleetbus.errors import ConfigError
from fleetbus.process import release as own
from release import versions


def test_every_package_and_chart_has_the_version_of_the_root():
    assert versions.others() == []


def test_every_package_is_a_part_that_processes_check():
    packages = [one.path for one in versions.places() if one.path.suffix == ".toml"]
    names = {f"fleetbus-{path.parent.name}" for path in packages}
    members = {name for name in names if name not in {"fleetbus-cli", "fleetbus-fleetbus"}}
    root = f"fleetbus-{versions.ROOT.name}"
    assert {*own.PARTS} == (members - {root}) | {"fleetbus"}


@pytest.mark.parametrize("text", ["", "1", "0.2", "v0.2.0", "0.02.0", "0.2.0-rc1", "0.2.0rc0"])
def test_what_is_no_version_is_refused_and_changes_nothing(text: str):
    with pytest.raises(ValueError, match="is no version like"):
        versions.set_version(text)


def test_parts_of_one_release_are_accepted():
    own.check_parts()


def test_parts_of_two_releases_are_refused(monkeypatch: pytest.MonkeyPatch):
    real = metadata.version

    def version(name: str) -> str:
        return "9.9.9" if name == "fleetbus-proto" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ConfigError, match=r"fleetbus-proto 9\.9\.9, fleetbus-sdk .*pip install"):
        own.check_parts()


def test_a_clone_has_no_commit():
    assert str(own.release()) == f"{versions.version()} (from a clone)"
