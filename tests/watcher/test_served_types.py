"""Heartbeats report the names and printer columns of custom resources."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from fleetbus_emulator.apiserver import Fail
from fleetbus_proto import codec
from fleetbus_proto.events import PrinterColumn, ServedType
from fleetbus_watcher.publish.heartbeat_size import fit
from fleetbus_watcher.resources import served_types
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually
from support.rigs.watcher import QUICK_TIMING, Rig, rig_for

WATCH: Final[dict[str, Any]] = {"resources": ("widgets.example.com", "configmaps")}
COLUMNS: Final = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "When", "type": "date", "jsonPath": ".status.at", "priority": 1},
]
SENT: Final = [
    PrinterColumn(name="Size", type="integer", json_path=".spec.size"),
    PrinterColumn(name="When", type="date", json_path=".status.at", priority=1),
]


def widgets(columns: list[dict[str, Any]]) -> dict[str, Any]:
    crd = definition("example.com", "widgets", "Widget", additionalPrinterColumns=columns)
    crd["spec"]["names"] |= {"shortNames": ["wd"], "categories": ["all"]}
    return crd


async def reported(rig: Rig) -> list[ServedType]:
    types = [beat.types for beat in await rig.heartbeats() if beat.types]
    return types[-1] if types else []


@pytest.fixture
async def rig(nats_url: str) -> AsyncGenerator[Rig]:
    soon = replace(QUICK_TIMING, definitions=timedelta(milliseconds=100))
    async with rig_for(nats_url, timing=soon) as opened:
        yield opened


async def test_names_and_columns_are_reported_and_again_when_they_change(rig: Rig):
    rig.cluster.create(CRDS, widgets(COLUMNS))
    async with rig.watching(**WATCH):
        (served_type,) = await eventually(lambda: reported(rig))

        assert (served_type.resource_key, served_type.singular) == ("example.com/widgets", "widget")
        assert (served_type.short_names, served_type.categories) == (["wd"], ["all"])
        assert served_type.columns == SENT

        crd = rig.cluster.get(CRDS, None, "widgets.example.com")
        assert crd is not None
        version = crd["spec"]["versions"][0]
        version["additionalPrinterColumns"] = COLUMNS[:1]
        rig.cluster.update(CRDS, crd)

        async def is_changed() -> bool:
            types = await reported(rig)
            return types[0].columns == SENT[:1]

        await eventually(is_changed)


async def test_the_columns_of_our_own_types_are_reported_though_their_names_are_known(rig: Rig):
    """`fleetbus get mcr` and `kubectl get mcr` below /kube had no column but the age."""
    crd = definition(
        "fleetbus.dev",
        "multiclusterresources",
        "MultiClusterResource",
        additionalPrinterColumns=COLUMNS,
    )
    rig.cluster.create(CRDS, crd)
    async with rig.watching(resources=("multiclusterresources.fleetbus.dev", "configmaps")):
        (served_type,) = await eventually(lambda: reported(rig))
    assert (served_type.resource_key, served_type.columns) == (
        "fleetbus.dev/multiclusterresources",
        SENT,
    )


async def test_the_kind_of_lists_is_the_accepted_one(rig: Rig):
    crd = widgets(COLUMNS)
    crd["spec"]["names"]["listKind"] = "WidgetCollection"
    rig.cluster.create(CRDS, crd)
    async with rig.watching(**WATCH):
        (served_type,) = await eventually(lambda: reported(rig))
        assert served_type.list_kind == "WidgetCollection"

        crd = rig.cluster.get(CRDS, None, "widgets.example.com")
        assert crd is not None
        crd["spec"]["names"]["listKind"] = "WidgetList"
        rig.cluster.update(CRDS, crd)

        async def is_usual() -> bool:
            return (await reported(rig))[0].list_kind == ""

        await eventually(is_usual)


async def test_a_name_that_is_accepted_later_is_reported_then():
    names = {"listKind": "WidgetCollection"}
    version = {"name": "v1"}

    def read(accepted: dict[str, str]) -> tuple[str, bool]:
        crd = {
            "spec": {"names": names, "versions": [version]},
            "status": {"acceptedNames": accepted},
        }
        defined = served_types.read_definition(msgspec.json.encode(crd), "v1")
        return defined.list_kind, defined.is_accepted

    assert read(names) == ("WidgetCollection", True)
    assert read({"listKind": "WidgetList"}) == ("WidgetList", False)
    assert read({}) == ("WidgetCollection", False)


async def test_names_of_built_in_types_are_reported_where_the_hub_does_not_have_them(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    def names_of(key: str) -> tuple[str, ...]:
        """Name no ConfigMaps: like a type of a release that is newer than the table."""
        return () if key == "core/configmaps" else ("known",)

    monkeypatch.setattr("fleetbus_watcher.resources.served_types.names_of", names_of)
    async with rig.watching(**WATCH):
        (served_type,) = await eventually(lambda: reported(rig))

    assert (served_type.resource_key, served_type.singular) == ("core/configmaps", "configmap")
    assert served_type.short_names == ["cm"]


async def test_unchanged_types_are_not_in_every_heartbeat(rig: Rig):
    rig.cluster.create(CRDS, widgets(COLUMNS))
    async with rig.watching(**WATCH, heartbeat_idle=timedelta(milliseconds=50)):
        await eventually(lambda: reported(rig))
        count = len(await rig.heartbeats())

        async def has_more() -> bool:
            return len(await rig.heartbeats()) >= count + 5

        await eventually(has_more)
    with_types = [beat for beat in await rig.heartbeats() if beat.types is not None]
    assert len(with_types) == 1


async def test_without_the_right_to_list_definitions_there_are_only_names(rig: Rig):
    rig.cluster.create(CRDS, widgets(COLUMNS))
    rig.cluster.faults.add(Fail(403), resource="customresourcedefinitions")
    async with rig.watching(**WATCH):
        (served_type,) = await eventually(lambda: reported(rig))

    assert (served_type.short_names, served_type.columns) == (["wd"], [])


async def test_a_hostile_definition_is_cut(rig: Rig):
    many = [
        {"name": f"c{i}", "type": "string", "jsonPath": "." + "a" * (2000 if i % 2 else 10)}
        for i in range(1000)
    ]
    rig.cluster.create(CRDS, widgets(many))
    async with rig.watching(**WATCH):
        (served_type,) = await eventually(lambda: reported(rig))

    assert [column.name for column in served_type.columns] == [f"c{i}" for i in range(0, 32, 2)]


async def test_w9_a_heartbeat_too_large_leaves_the_types_out_first(rig: Rig):
    rig.cluster.create(CRDS, widgets(COLUMNS))
    async with rig.watching(**WATCH):
        await eventually(lambda: reported(rig))
    beat = next(b for b in await rig.heartbeats() if b.types is not None)

    small = fit(beat, len(codec.encode(beat)) - 1)

    assert small == msgspec.structs.replace(beat, types=None)
