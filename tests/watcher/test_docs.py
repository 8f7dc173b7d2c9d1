"""docs/watcher.md lists every setting and every metric, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import REGISTRY

from fleetbus.process.settings import SharedSettings
from fleetbus_watcher.metrics import ALARMS, MOVES
from fleetbus_watcher.settings import PoolSettings, WatcherSettings
from support.servers.restricted_nats import RESTRICTED

DOCS = (Path(__file__).parents[2] / "docs" / "watcher.md").read_text()


def test_every_setting_is_documented():
    section = DOCS.partition("## Settings")[2].partition("\n## ")[0]
    names = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    documented = {name for cell in names for name in re.findall(r"`([A-Z_]+)`", cell)}
    assert documented == {name.upper() for name in WatcherSettings.model_fields}


def test_what_is_documented_of_every_service_are_its_settings_and_their_defaults():
    section = DOCS.partition("## Variables of every service")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| (.*?) \|", section, re.MULTILINE)
    documented = [name for cell, _ in rows for name in re.findall(r"`FLEETBUS_([A-Z_]+)`", cell)]
    assert len(documented) == 8
    fields = {name.upper(): field for name, field in SharedSettings.model_fields.items()}
    assert set(documented) <= set(fields)
    for cell, defaults in rows:
        names = re.findall(r"`FLEETBUS_([A-Z_]+)`", cell)
        defaults_stated = re.findall(r"`(.*?)`", defaults)
        assert defaults_stated in ([], [str(fields[name].default) for name in names])


def test_every_metric_is_documented():
    documented = set(re.findall(r"^\| `(fleetbus_watcher_\w+)`", DOCS, re.MULTILINE))
    names_of_metrics: set[str] = set()
    for family in REGISTRY.collect():
        if family.name.startswith("fleetbus_watcher_"):
            names_of_metrics.add(
                f"{family.name}_total" if family.type == "counter" else family.name
            )
    assert documented == names_of_metrics


def test_every_alarm_says_what_to_do():
    assert set(re.findall(r"^\*\*`(\w+)`\*\*", DOCS, re.MULTILINE)) == set(ALARMS)


def test_s3_the_documented_rights_are_those_that_suffice():
    granted = re.findall(r'"([^"]+\.[>*]|fleetbus[^"]+|\$JS[^"]+)"', RESTRICTED)
    assert len(granted) == 21
    documented = [
        right for right in granted if f"`{right.replace('{cluster}', '<cluster>')}`" in DOCS
    ]
    assert documented == granted


def test_w22_every_setting_of_the_pool_is_documented_with_its_default():
    section = DOCS.partition("## The pool")[2].partition("\n## ")[0]
    documented = dict(re.findall(r"^\| `([A-Z_]+)` \| `(.*?)` \|", section, re.MULTILINE))
    settings = PoolSettings()
    assert documented == {
        "SELECTOR": settings.selector,
        "LEASE": f"{settings.lease.total_seconds():g}s",
        "HAND_OVER": f"{settings.hand_over.total_seconds():g}s",
        "LISTS_AT_ONCE": str(settings.lists_at_once),
    }
    assert documented.keys() == {name.upper() for name in PoolSettings.model_fields}


def test_w22_every_way_to_change_hands_is_documented():
    assert [how for how in MOVES if f"`{how}`" not in DOCS] == []
