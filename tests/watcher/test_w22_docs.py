"""docs/watcher.md tells every setting of the pool, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from fleetbus_watcher.pool_metrics import MOVES
from fleetbus_watcher.pool_settings import PoolSettings

DOCS = (Path(__file__).parents[2] / "docs" / "watcher.md").read_text()
SECTION = DOCS.partition("## The pool")[2].partition("\n## ")[0]


def test_w22_every_setting_of_the_pool_is_told_with_its_default():
    told = dict(re.findall(r"^\| `([A-Z_]+)` \| `(.*?)` \|", SECTION, re.MULTILINE))
    settings = PoolSettings()
    assert told == {
        "SELECTOR": settings.selector,
        "LEASE": f"{settings.lease.total_seconds():g}s",
        "HAND_OVER": f"{settings.hand_over.total_seconds():g}s",
        "LISTS_AT_ONCE": str(settings.lists_at_once),
    }
    assert told.keys() == {name.upper() for name in PoolSettings.model_fields}


def test_w22_every_way_to_change_hands_is_told():
    assert [how for how in MOVES if f"`{how}`" not in DOCS] == []
