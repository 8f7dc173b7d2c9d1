"""Rollouts on the bus (rules D17 to D20): waves, votes, health, pauses, and clusters that die."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fleetbus.bus.connection import connected
from support.eventually import eventually, never
from support.objects import config_map, deployment
from support.rigs.distribution import (
    AFTER_RETURN,
    EVERYWHERE,
    HUB,
    IN_FULL,
    Distribution,
    distribution,
)
from support.rigs.fleet import Rig
from support.rigs.rollout import DEPLOYMENTS
from support.rigs.scenario import QUIET

pytestmark = [IN_FULL, pytest.mark.timeout(600)]
Open = Callable[..., Awaitable[Rig]]
Object = dict[str, Any]
MAPS, REVISIONS = "v1/configmaps", "apps/v1/controllerrevisions"
CANARY: Object = {"name": "canary", "clusters": [{"name": "t1"}]}
SECOND: Object = {"name": "second", "clusters": [{"name": "t2"}]}
TESTS: Object = {"name": "tests"}


def values(d: Distribution) -> list[str | None]:
    """The value on t1, t2 and the hub."""
    by_cluster = d.of(lambda obj: obj["data"]["k"], MAPS, "m")
    return [by_cluster[name] for name in ("t1", "t2", HUB)]


def rollout(d: Distribution) -> Object:
    return d.status().get("rollout") or {"phase": "", "revision": 0, "waves": [], "message": ""}


def phases(d: Distribution) -> dict[str, str]:
    return {wave["name"]: wave["phase"] for wave in rollout(d)["waves"]}


async def have(d: Distribution, *expected: str | None) -> None:
    try:
        await eventually(lambda: values(d) == [*expected], AFTER_RETURN)
    except AssertionError as e:
        e.add_note(f"there is {values(d)}; {json.dumps(rollout(d))[:2000]}")
        raise


async def in_phase(d: Distribution, phase: str, revision: int) -> None:
    def is_there() -> bool:
        state = rollout(d)
        return (state["phase"], state["revision"]) == (phase, revision)

    try:
        await eventually(is_there, AFTER_RETURN)
    except AssertionError as e:
        e.add_note(json.dumps(rollout(d))[:2000])
        raise


async def vote(d: Distribution, wave: str, revision: int, **body: str) -> None:
    """Vote as any NATS client does, on the revision of this number."""
    await eventually(lambda: rollout(d)["revision"] == revision, AFTER_RETURN)
    subject = f"{rollout(d)['votes']}.{wave}.tests"
    async with connected(d.rig.shared.nats_url, name="voter") as bus:
        stored = await bus.nc.request(subject, json.dumps(body).encode(), timeout=5)
    assert "error" not in json.loads(stored.data), stored.data


@asynccontextmanager
async def on_v1(open_rig: Open, rollout: Object, **options: Any) -> AsyncGenerator[Distribution]:
    """Everything has the first revision."""
    async with distribution(open_rig, **options) as d:
        d.create(template=config_map(k="v1"), placement=EVERYWHERE, rollout={})
        await d.applied()
        await in_phase(d, "Complete", 1)
        d.edit(rollout=rollout)
        yield d


async def test_d17_votes_open_the_waves_and_a_failed_one_goes_back(open_rig: Open) -> None:
    async with on_v1(open_rig, {"waves": [CANARY], "gates": [TESTS]}) as d:
        d.edit(template=config_map(k="v2"))
        await have(d, "v2", "v1", "v1")
        await eventually(lambda: "no vote yet on" in rollout(d)["message"], AFTER_RETURN)
        # The others keep what they have: drift is corrected to that.
        await d.rig.synced("core/configmaps")
        d.rig.clusters["t2"].patch(MAPS, "default", "m", {"data": {"k": "by hand"}})
        await have(d, "v2", "v1", "v1")
        await d.stays_quiet()
        await vote(d, "canary", 2, vote="fail", reason="p99 is 3 s")
        await in_phase(d, "Failed", 2)
        assert rollout(d)["message"] == "wave canary: gate tests: p99 is 3 s"
        await never(lambda: values(d) != ["v2", "v1", "v1"], QUIET)

        status, output = await d.fleetbus("rollout", "status", "x")
        assert status == 1, output
        status, output = await d.fleetbus("rollout", "undo", "x")
        assert status == 0, output
        await have(d, "v1", "v1", "v1")
        await vote(d, "canary", 3, vote="pass")
        await vote(d, "remaining", 3, vote="pass")
        await in_phase(d, "Complete", 3)
        status, output = await d.fleetbus("rollout", "history", "x", "-o", "json")
        assert status == 0, output
        assert [revision["revision"] for revision in json.loads(output)["revisions"]] == [2, 3]
        assert len(d.hub.list(REVISIONS, "default")) == 2
        await d.applied()
        d.delete()
        await d.gone()
        await d.close(deleted=[f"{name} m" for name in ("t1", "t2", HUB)])


async def test_d17_a_cluster_that_dies_in_mid_rollout_stops_its_wave_and_no_other_thing(
    open_rig: Open,
) -> None:
    waves = [CANARY | {"gates": [TESTS]}, SECOND]
    async with on_v1(open_rig, {"waves": waves}) as d:
        d.edit(template=config_map(k="v2"))
        await have(d, "v2", "v1", "v1")
        await d.rig.servers.stop("t2")
        await vote(d, "canary", 2, vote="pass")
        await eventually(lambda: phases(d)["second"] == "Open", AFTER_RETURN)
        await eventually(lambda: d.entry("t2")["state"] == "Unreachable", AFTER_RETURN)
        await never(lambda: values(d) != ["v2", "v1", "v1"], QUIET)
        assert "t2" in rollout(d)["message"]
        # Another distributor goes on where the first one was.
        await d.stop_distributors()
        d.start_distributors()
        await d.quiet()
        assert values(d) == ["v2", "v1", "v1"]

        d.suspend("t2")
        await have(d, "v2", "v1", "v2")
        await d.rig.servers.start("t2")
        await never(lambda: values(d) != ["v2", "v1", "v2"], QUIET)
        d.suspend("t2", suspended=False)
        await have(d, "v2", "v2", "v2")
        await in_phase(d, "Complete", 2)
        await d.close()


async def test_d17_deleted_in_mid_rollout_it_waits_for_the_cluster_that_is_away(
    open_rig: Open,
) -> None:
    async with on_v1(open_rig, {"waves": [CANARY], "gates": [TESTS]}) as d:
        d.edit(template=config_map(k="v2"))
        await have(d, "v2", "v1", "v1")
        await d.rig.servers.stop("t1")
        d.delete()
        await eventually(lambda: d.where(MAPS, "m") == ["t1"], AFTER_RETURN)
        await never(lambda: not d.exists(), QUIET)
        await d.rig.servers.start("t1")
        await d.gone()
        assert d.where(MAPS, "m") == []
        # The clean-up of revisions is the garbage collector's; they are owned by what is gone.
        owners = [
            revision["metadata"]["ownerReferences"] for revision in d.hub.list(REVISIONS, "default")
        ]
        assert all(references[0]["name"] == "x" for references in owners)
        await d.close(deleted=[f"{name} m" for name in ("t1", "t2", HUB)])


async def test_d20_pause_resume_and_an_edit_in_between(open_rig: Open) -> None:
    async with on_v1(open_rig, {"waves": [CANARY, SECOND]}) as d:
        status, output = await d.fleetbus("rollout", "pause", "x")
        assert status == 0, output
        d.edit(template=config_map(k="v2"))
        await in_phase(d, "Paused", 2)
        await never(lambda: values(d) != ["v1", "v1", "v1"], QUIET)
        await d.stays_quiet()
        d.edit(template=config_map(k="v3"))
        await in_phase(d, "Paused", 3)
        status, output = await d.fleetbus("rollout", "resume", "x")
        assert status == 0, output
        await have(d, "v3", "v3", "v3")
        await in_phase(d, "Complete", 3)
        order = [
            next(
                write.time
                for write in reversed(d.writes(name))
                if write.path.endswith("/configmaps/m")
            )
            for name in ("t1", "t2", HUB)
        ]
        assert order == sorted(order)
        await d.close()


async def test_d21_a_wave_waits_for_healthy_objects_and_fails_in_time(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        gate = {"waves": [CANARY], "healthGate": {"timeout": "10m"}}
        d.create(template=deployment(image="a"), placement=EVERYWHERE, rollout=gate)
        await eventually(lambda: d.where(DEPLOYMENTS, "web") == ["t1"], AFTER_RETURN)
        await d.rig.synced("apps/deployments")
        await never(lambda: d.where(DEPLOYMENTS, "web") != ["t1"], QUIET)
        make_healthy(d, "t1")
        await eventually(lambda: d.where(DEPLOYMENTS, "web") == ["t1", "t2", HUB], AFTER_RETURN)
        for name in ("t2", HUB):
            make_healthy(d, name)
        await in_phase(d, "Complete", 1)

        d.edit(template=deployment(image="b"), rollout=gate | {"healthGate": {"timeout": "3s"}})
        await in_phase(d, "Failed", 2)
        images = d.of(image, DEPLOYMENTS, "web")
        assert images == {"t1": "b", "t2": "a", HUB: "a"}
        await never(lambda: d.of(image, DEPLOYMENTS, "web") != images, QUIET)
        make_healthy(d, "t1")  # too late: only a person lets it go on
        await never(lambda: rollout(d)["phase"] != "Failed", QUIET)
        for verb in ("pause", "resume"):
            status, output = await d.fleetbus("rollout", verb, "x")
            assert status == 0, output
            await d.quiet()
        await eventually(lambda: set(d.of(image, DEPLOYMENTS, "web").values()) == {"b"})
        for name in ("t2", HUB):
            make_healthy(d, name)
        await in_phase(d, "Complete", 2)
        await d.close()


async def test_d20_warnings_about_our_objects_delay_the_gate_quiet(open_rig: Open) -> None:
    gates = [{"name": "quiet", "period": "6s"}]
    async with on_v1(open_rig, {"waves": [CANARY | {"gates": gates}]}) as d:
        d.edit(template=config_map(k="v2"))
        await have(d, "v2", "v1", "v1")
        warn(d, "t1")
        await eventually(lambda: "Broken" in json.dumps(rollout(d)), AFTER_RETURN)
        assert values(d) == ["v2", "v1", "v1"]
        await have(d, "v2", "v2", "v2")
        await in_phase(d, "Complete", 2)
        await d.close()


async def test_d17_clusters_join_and_leave_in_mid_rollout(open_rig: Open) -> None:
    async with distribution(
        open_rig, later=["t3"], labels={n: {"tier": "prod"} for n in ("t1", "t2", HUB)}
    ) as d:
        placement = {"clusterSelector": {"matchLabels": {"tier": "prod"}}}
        gated = {"waves": [CANARY], "gates": [TESTS]}
        d.create(template=config_map(k="v1"), placement=placement, rollout={})
        await d.applied()
        d.edit(template=config_map(k="v2"), rollout=gated, policy={"fuse": {"percent": 50}})
        await have(d, "v2", "v1", "v1")
        d.join("t3", tier="prod")
        await eventually(lambda: "t3" in d.states(), AFTER_RETURN)
        assert d.states()["t3"] == "Waiting/WaveNotOpen"
        d.label("t2", tier=None)  # within the limits of the fuse
        await have(d, "v2", None, "v1")
        await eventually(lambda: "t2" not in d.states(), AFTER_RETURN)
        await vote(d, "canary", 2, vote="pass")
        await have(d, "v2", None, "v2")
        await eventually(lambda: d.where(MAPS, "m") == sorted(["t1", "t3", HUB]), AFTER_RETURN)
        await vote(d, "remaining", 2, vote="pass")
        await in_phase(d, "Complete", 2)
        await d.close(deleted=["t2 m"])


async def test_d17_what_a_revision_drops_goes_with_its_wave(open_rig: Open) -> None:
    async with on_v1(open_rig, {"waves": [CANARY], "gates": [TESTS]}) as d:
        d.edit(
            templates=[config_map(k="v2"), config_map("extra", k="v2")],
            template=None,
        )
        await vote(d, "canary", 2, vote="pass")
        await vote(d, "remaining", 2, vote="pass")
        await in_phase(d, "Complete", 2)
        assert d.where(MAPS, "extra") == ["t1", "t2", HUB]
        d.edit(templates=[config_map(k="v3")])
        await have(d, "v3", "v2", "v2")
        await eventually(lambda: d.where(MAPS, "extra") == ["t2", HUB], AFTER_RETURN)
        await never(lambda: d.where(MAPS, "extra") != ["t2", HUB], QUIET)
        await vote(d, "canary", 3, vote="pass")
        await have(d, "v3", "v3", "v3")
        await eventually(lambda: d.where(MAPS, "extra") == [], AFTER_RETURN)
        assert "held" not in d.status()
        await d.close(deleted=[f"{name} extra" for name in ("t1", "t2", HUB)])


def image(obj: Object) -> str:
    return obj["spec"]["template"]["spec"]["containers"][0]["image"]


def make_healthy(d: Distribution, cluster: str) -> None:
    """Write what a Deployment controller would write."""
    status = {
        "observedGeneration": d.get(cluster, DEPLOYMENTS, "web")["metadata"]["generation"],
        "replicas": 1,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
    }
    server = d.rig.clusters[cluster]
    server.patch(DEPLOYMENTS, "default", "web", {"status": status}, subresource="status")


def warn(d: Distribution, cluster: str) -> None:
    metadata = d.get(cluster, MAPS, "m")["metadata"]
    involved = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "namespace": "default",
        "name": "m",
        "uid": metadata["uid"],
    }
    now = "2030-01-01T00:00:00Z"
    event = {
        "metadata": {"generateName": "m.", "namespace": "default"},
        "involvedObject": involved,
        "type": "Warning",
        "reason": "Broken",
        "message": "it is broken",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    d.rig.clusters[cluster].create("v1/events", event)
