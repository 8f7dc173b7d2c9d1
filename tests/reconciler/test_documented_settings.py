"""docs/reconciler.md documents every setting with its default, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fleetbus.process.settings import SharedSettings
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import STREAM
from fleetbus_reconciler.settings import ReconcilerSettings

DOCS = (Path(__file__).parents[2] / "docs" / "reconciler.md").read_text(encoding="utf-8")


def _documented() -> dict[str, str]:
    """The settings of the table and their defaults."""
    rows = re.findall(r"^\| (`[A-Z].*?`) \| (.*?) \|", DOCS, re.MULTILINE)
    documented: dict[str, str] = {}
    for names, defaults in rows:
        documented |= zip(
            re.findall(r"`(.*?)`", names), re.findall(r"`(.*?)`|empty", defaults), strict=True
        )
    return documented


def test_every_setting_is_documented_with_the_default_that_is_used() -> None:
    documented = _documented()
    assert set(documented) == {name.upper() for name in ReconcilerSettings.model_fields}
    fields: Any = {name.lower(): default for name, default in documented.items() if default != "[]"}
    assert ReconcilerSettings(**fields) == ReconcilerSettings(modules=[])
    assert documented["MODULES"] == documented["SUBSCRIBERS"] == "[]"


def test_every_variable_of_the_page_is_a_setting() -> None:
    variables = {f"FLEETBUS_{name.upper()}" for name in SharedSettings.model_fields}
    variables |= {f"FLEETBUS_RECONCILER_{name.upper()}" for name in ReconcilerSettings.model_fields}
    others = {"FLEETBUS_RECONCILER", STREAM, KV_BUCKET}
    assert set(re.findall(r"FLEETBUS_[A-Z_]+\b(?<!_)", DOCS)) - others <= variables
