"""docs/reconciler.md tells every setting with its default, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fleetbus.process.settings import SharedSettings
from fleetbus_reconciler.settings import ReconcilerSettings

DOCS = (Path(__file__).parents[2] / "docs" / "reconciler.md").read_text(encoding="utf-8")


def _told() -> dict[str, str]:
    """The settings of the table and their defaults."""
    rows = re.findall(r"^\| (`[A-Z].*?`) \| (.*?) \|", DOCS, re.MULTILINE)
    told: dict[str, str] = {}
    for names, defaults in rows:
        told |= zip(re.findall(r"`(.*?)`", names), re.findall(r"`(.*?)`", defaults), strict=True)
    return told


def test_every_setting_is_told_and_its_default_is_the_one_that_is_used() -> None:
    told = _told()
    assert set(told) == {name.upper() for name in ReconcilerSettings.model_fields}
    given: Any = {name.lower(): default for name, default in told.items() if name != "MODULES"}
    assert ReconcilerSettings(**given) == ReconcilerSettings(modules=[])
    assert told["MODULES"] == "[]"


def test_every_variable_of_the_page_is_a_setting() -> None:
    known = {f"FLEETBUS_{name.upper()}" for name in SharedSettings.model_fields}
    known |= {f"FLEETBUS_RECONCILER_{name.upper()}" for name in ReconcilerSettings.model_fields}
    assert set(re.findall(r"FLEETBUS_[A-Z_]+\b(?<!_)", DOCS)) - {"FLEETBUS_RECONCILER"} <= known
