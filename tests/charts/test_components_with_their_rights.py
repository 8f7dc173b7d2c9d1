"""Every component as a process, with its rendered rights on NATS, Valkey, hub and members.

A right that is missing ends the process, or is in its log (rules S3, S4 and S8), or among the calls
that an API server refused; a right on an API server that is never used is reported, too (rule S7).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from emulator.support.kube_calls import widget_definition
from fleetbus.clusters.member_rights import NAMESPACE as MEMBER_NAMESPACE
from fleetbus.clusters.member_rights import WRITER, writer_rules
from fleetbus_emulator.apiserver import Cluster, User
from fleetbus_proto.resources import parse_resource
from support.api.custom_resource_definitions import CRDS
from support.api.rbac import Call, differences
from support.api.rendered_chart import EU1, SEED, SHOP, Object
from support.eventually import eventually
from support.rigs.release import HUB, KUBECONFIGS, Release, account, released
from support.servers.plain_http import http_client

RESOURCES = [
    "v1/pods",
    "example.com/v1/widgets",
    "fleetbus.dev/v1alpha1/clusters",
    "fleetbus.dev/v1alpha1/multiclusterresources",
]
WATCHED = ["v1/pods", "v1/configmaps", "example.com/v1/widgets"]
WRITTEN = ["v1/configmaps", "v1/namespaces", "v1/events"]
RULES = writer_rules(map(parse_resource, WRITTEN))
VALUES: Object = {
    "credentials": {"seed": SEED},
    "distributor": {"requireServiceAccount": False},  # its own rights are tried
    "watchers": {"clusters": [EU1, {"name": HUB, "watch": {"resources": RESOURCES}}]},
    "reconcilers": [
        {**SHOP, "controllers": ["shop"], "rules": writer_rules(map(parse_resource, WRITTEN))}
    ],
}
POD: Object = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
EVERY_VERB = str(Path(__file__).parents[1] / "scripts" / "every_verb.py")
MCR = "fleetbus.dev/v1alpha1/multiclusterresources"
MAPS = "v1/configmaps"
WITHIN = timedelta(seconds=30)
RECORDS = "a Children controller reads the records of unjoined clusters when one is gone"
EVENTS = "read only when two processes write the same Event at the same time"
RENEWAL = "renews tokens that are about to end; no token of this run ends (rule W19)"
CHUNKS = "used where an intent is larger than 1 MiB (tests/charts/test_rights_of_chunks.py)"
DISTRIBUTOR_USER = account("fb-fleetbus-distributor")
PROJECTOR_USER = account("fb-fleetbus-projector")
SHOP_USER, WRITER_USER = account("fb-fleetbus-reconciler-shop"), account(WRITER, MEMBER_NAMESPACE)
UNUSED: Final[dict[str, dict[str, str]]] = {
    "hub": {
        f"{SHOP_USER}: list configmaps fleetbus-clusters/*": RECORDS,
        f"{SHOP_USER}: get clusters.fleetbus.dev */*": RECORDS,
        f"{SHOP_USER}: get events */*": EVENTS,
        **{
            f"{DISTRIBUTOR_USER}: {verb} inventorychunks.fleetbus.dev */*": CHUNKS
            for verb in ("get", "create", "patch", "delete")
        },
        f"{PROJECTOR_USER}: get secrets fleetbus-clusters/*": RENEWAL,
        f"{PROJECTOR_USER}: patch secrets fleetbus-clusters/*": RENEWAL,
        f"{PROJECTOR_USER}: patch secrets fleetbus/eu1-watcher": RENEWAL,
    },
    "member": {f"{WRITER_USER}: get events */*": EVENTS},
}
"""Rights that this run cannot exercise, each with the reason."""


@pytest.mark.full
async def test_s3_s4_s7_s8_every_component_works_with_its_own_rights_and_uses_all(tmp_path: Path):
    async with released(
        VALUES, tmp_path, members={"eu1": True, "us1": False}, watched=WATCHED, written=WRITTEN
    ) as release:
        set_up(release)
        release.reconciler("projector")
        release.watcher("eu1")
        release.watcher(HUB)
        release.pool()
        release.reconciler("shop", EVERY_VERB)
        release.distributor()
        release.query_api()
        await release.ready()
        await exercise(release)
        await wait_for_equality(release)
    for name, text in release.logs().items():
        assert "violation" not in text, name
        assert "noperm" not in text, name


def set_up(release: Release) -> None:
    """Join the members; one left before, and whoever may delete the record of that tries to."""
    hub = release.clusters[HUB]
    for cluster in release.clusters.values():
        cluster.create(CRDS, widget_definition())
    release.join("eu1", **{"fleetbus.dev/watcher": "dedicated"})
    release.join("us1")
    metadata: Object = {
        "name": "left-us1",
        "labels": {"fleetbus.dev/left-cluster": "us1"},
        "annotations": {"fleetbus.dev/left-cluster-uid": "an-earlier-one"},
        "finalizers": ["example.com/stays"],
    }
    hub.create(MAPS, {"metadata": metadata}, KUBECONFIGS)
    hub.credentials.add_token("token-of-ann", User("ann"), audiences=("fleetbus",))


async def exercise(release: Release) -> None:
    """Do what the rights are for."""
    hub, us1 = release.clusters[HUB], release.clusters["us1"]
    log = release.folder / "reconciler-shop.log"
    for name, cluster in release.clusters.items():
        cluster.create("v1/pods", POD, "default")
        calls = release.audits[name].calls
        await eventually(lambda calls=calls: {"list", "watch"} <= verbs_of_widgets(calls), WITHIN)
        cluster.delete(CRDS, None, "widgets.example.com")
    await eventually(lambda: log.read_text().count("every verb used in") == 3, WITHIN)
    template: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m", "namespace": "new"},
        "data": {},
    }
    spec = {
        "template": template,
        "placement": {"clusters": [{"name": "us1"}]},
        "policy": {"createNamespaces": True},
        "rollout": {"revisionHistoryLimit": 0},
    }
    hub.create(MCR, {"metadata": {"name": "x", "namespace": "default"}, "spec": spec})
    await eventually(lambda: us1.get(MAPS, "new", "m"), WITHIN)
    await roll_out(hub)
    hub.delete(MCR, "default", "x")
    await eventually(lambda: hub.get(MCR, "default", "x") is None, WITHIN)
    port = (release.folder / "query-api-http.port").read_text().strip()
    async with http_client(f"http://127.0.0.1:{port}") as client:
        answer = await client.get(
            "/fleet/v1/resources/pods", headers={"Authorization": "Bearer token-of-ann"}
        )
        assert answer.status_code == 404, answer.text  # she may not list there


async def roll_out(hub: Cluster) -> None:
    """Begin another revision, and go back to the first one, which is stored already."""

    def rollout() -> Object:
        resource = hub.get(MCR, "default", "x") or {}
        return resource.get("status", {}).get("rollout", {})

    await eventually(lambda: rollout().get("phase") == "Complete", WITHIN)
    for number, data, paused in ((2, {"k": "v"}, True), (3, {"k": None}, False)):
        change = {"template": {"data": data}, "rollout": {"paused": paused}}
        hub.patch(MCR, "default", "x", {"spec": change})
        await eventually(lambda number=number: rollout().get("revision") == number, WITHIN)
    await eventually(lambda: rollout().get("phase") == "Complete", WITHIN)


def verbs_of_widgets(calls: Iterable[Call]) -> set[str]:
    return {call.verb for call in calls if call.resource == "widgets"}


async def wait_for_equality(release: Release) -> None:
    """Wait until all rights were used: some are for what happens a while after a change."""
    with suppress(AssertionError):
        await eventually(lambda: not problems(release), WITHIN)
    assert "\n".join(problems(release)) == ""


def problems(release: Release) -> list[str]:
    problems_of_all: list[str] = []
    for name, audit in release.audits.items():
        explained = UNUSED["hub" if name == HUB else "member"]
        problems_of_all += [
            f"{name}: {difference}"
            for difference in differences(audit.grants, audit.calls, explained)
        ]
    return problems_of_all
