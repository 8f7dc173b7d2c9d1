"""Every pair of colours that is used together is readable: contrast 4.5 as of WCAG 2.2 AA."""

from __future__ import annotations

import re

import pytest

from fleetbus_query_api.page.files import PageFiles
from support.rows import each_row

SHEET = next(
    file.body.decode() for path, file in PageFiles.load().by_path.items() if path.endswith(".css")
)
TONES = ("good", "warn", "bad")
SURFACES = ("bg", "panel", "raised", "select")
PAIRS = [
    *[(ink, surface) for ink in ("ink", "dim", "accent") for surface in SURFACES],
    *[
        (tone, surface)
        for tone in ("good", "warn", "bad")
        for surface in ("bg", "panel", "raised", "select")
    ],
    *[(tone, f"{tone}-bg") for tone in ("good", "warn", "bad", "accent")],
    ("on-accent", "accent"),
]
LIMIT = 4.5
"""Text; what is not text, such as the outline of the focus, needs 3."""


def _palettes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", SHEET, re.DOTALL)
    read = {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))
        for name, text in (("light", light), ("dark", dark))
    }
    assert read["light"].keys() == read["dark"].keys()
    return read


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_black_on_white_has_the_known_contrast():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@each_row("scheme", ["light", "dark"])
@each_row(("ink", "surface"), PAIRS)
def test_each_pair_is_readable(scheme: str, ink: str, surface: str):
    palette = _palettes()[scheme]
    assert contrast(palette[ink], palette[surface]) >= LIMIT


def test_colours_come_from_the_palette_only():
    other_rules = re.sub(r":root \{.*?\}", "", SHEET, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-f]{3,8}\b", other_rules) == []
    used = set(re.findall(r"(?<![-\w])color: var\(--([\w-]+)\)", other_rules))
    assert used <= {ink for ink, _ in PAIRS}


def test_focus_is_shown_and_motion_can_be_refused():
    assert ":focus-visible { outline: 2px solid var(--accent)" in SHEET
    moving = re.findall(r"^.*\b(?:transition|animation)\b.*$", SHEET, re.MULTILINE)
    assert moving
    block = SHEET.split("@media (prefers-reduced-motion: no-preference)")[1]
    assert all(line in block for line in moving)
