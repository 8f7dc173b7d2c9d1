"""Names of resources are resolved as kubectl does, those of custom resources too."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from fleetbus.snapshot import (
    ClusterRecord,
    Definition,
    ResourceRecord,
    SnapshotReader,
    SnapshotWriter,
)
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import ResourceName
from fleetbus_query_api.catalog.catalog import Catalog, KnownFleet, KnownResource, ResourceIndex
from fleetbus_query_api.responses.problem import NotFoundProblem
from support.rows import each_row

WIDGETS = ResourceRecord(
    group="example.com",
    version="v1",
    plural="widgets",
    kind="Widget",
    definition=Definition(singular="widgie", short_names=["wd", "po"], categories=["all", "ours"]),
)


@pytest.fixture
async def fleet(redis: Redis) -> KnownFleet:
    writer, reader = SnapshotWriter(redis, SnapshotKeys()), SnapshotReader(redis, SnapshotKeys())
    await writer.ensure_generation()
    await writer.put_cluster("c1", ClusterRecord(name="c1"))
    builtin = [
        ResourceRecord(group=group, version="v1", plural=plural, kind=kind)
        for group, plural, kind in (
            ("core", "pods", "Pod"),
            ("core", "configmaps", "ConfigMap"),
            ("apps", "deployments", "Deployment"),
        )
    ]
    for record in (WIDGETS, *builtin):
        await writer.put_resource_state("c1", record)
    return await Catalog(reader).fleet()


@each_row(
    ("text", "key"),
    [
        ("wd", "example.com/widgets"),
        ("widgie", "example.com/widgets"),
        ("Widget", "example.com/widgets"),
        ("wd.example.com", "example.com/widgets"),
        ("po", "core/pods"),
        ("deploy", "apps/deployments"),
        ("cm", "core/configmaps"),
    ],
)
def test_short_names_and_singulars_are_resolved(fleet: KnownFleet, text: str, key: str):
    assert fleet.find(text).key == key


def test_an_unknown_short_name_is_refused(fleet: KnownFleet):
    with pytest.raises(NotFoundProblem):
        fleet.find("wdd")


def many_types(count: int) -> ResourceIndex:
    return ResourceIndex(
        KnownResource(
            group=f"g{number % 7}.example.com",
            plural=f"widgets{number}",
            kind=f"Widget{number}",
            namespaced=True,
            versions=("v1",),
            short_names=(f"w{number}",),
        )
        for number in range(count)
    )


@each_row("text", ["widgets9", "Widget9", "w9", "widgets9.g2.example.com", "widgets10.g2"])
def test_a8_only_types_that_may_be_meant_are_looked_at(monkeypatch: pytest.MonkeyPatch, text: str):
    """Each name of a request was compared with those of all types, and each object's type, too."""
    resources = many_types(2_000)
    asked = list[str]()
    rank_for = KnownResource.rank_for

    def count(resource: KnownResource, name: ResourceName) -> Any:
        asked.append(resource.plural)
        return rank_for(resource, name)

    monkeypatch.setattr(KnownResource, "rank_for", count)
    fleet = KnownFleet({}, resources)
    matches = [resource.plural for resource in resources.named(text)]
    if text == "widgets10.g2":
        assert matches == []
        with pytest.raises(NotFoundProblem):
            fleet.find(text)
    else:
        assert matches == ["widgets9"]
        assert fleet.find(text).plural == "widgets9"
    assert len(set(asked)) <= 1
