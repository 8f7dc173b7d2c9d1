"""The public names of `fleetbus`: all can be imported, and importing them is cheap."""

from __future__ import annotations

import subprocess

import pytest

import fleetbus
from fleetbus import errors
from support.processes.programs import module
from support.rows import each_row


@each_row("name", fleetbus.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(fleetbus, name) is not None
    assert name in dir(fleetbus)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Manager'"):
        fleetbus.Manager  # type: ignore[attr-defined]  # noqa: B018


def test_the_errors_of_the_package_are_those_of_the_tree() -> None:
    names = {"AlreadyExists", "ConfigError", "Conflict", "Forbidden"}
    names |= {"Invalid", "NotFound", "StoreError"}
    for name in names:
        assert getattr(fleetbus, name) is getattr(errors, name)
        assert issubclass(getattr(fleetbus, name), fleetbus.FleetbusError)
    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, fleetbus.FleetbusError):
            assert name in drawn, "the tree at the top of errors.py has every error"


def test_importing_the_package_and_its_errors_loads_nothing_heavy() -> None:
    command = module("scripts.loaded_by_import")
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == ""
