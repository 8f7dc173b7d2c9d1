"""A distributor that dies at any write of a rollout resumes it (rules D2, D18)."""

from __future__ import annotations

import json

import pytest

from fleetbus.errors import FleetbusError
from fleetbus_distributor.rollout.history import RESOURCE as REVISIONS
from fleetbus_emulator.apiserver import Abort
from support.rigs.distributor import CONFIG_MAP, HUB, Object, Rig

MAPS = "v1/configmaps"
NAMES = ("t1", "t2", "t4")
ROLLOUT = {"waves": [{"name": "canary", "clusters": [{"name": "t1"}]}], "gates": [{"name": "t"}]}
_MOST_WRITES = 30
POINTS = [
    (HUB, "create", "controllerrevisions"),
    (HUB, "delete", "controllerrevisions"),
    (HUB, "update", "multiclusterresources/status"),
    *((name, verb, "configmaps") for name in ("t1", "t2") for verb in ("patch", "delete")),
]


def templates(mark: str, name: str) -> list[Object]:
    """Two objects of the first revision; the second one changes one and drops the other."""
    config = {**CONFIG_MAP, "metadata": {"name": name, "namespace": "default"}, "data": {"k": mark}}
    dropped = {**config, "metadata": {"name": f"{name}-old", "namespace": "default"}}
    return [config, dropped] if mark == "v1" else [config]


def value(rig: Rig, cluster: str, name: str) -> str:
    live = rig.clusters[cluster].get(MAPS, "default", name)
    return live["data"]["k"] if live else ""


class Story:
    """One rollout of the second revision, in which the distributor dies once."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = name

    async def round(self) -> bool:
        """One round; whether the distributor survived it."""
        try:
            await self.rig.reconcile(self.name)
        except FleetbusError:
            self.rig.restart()
            return False
        finally:
            self.check_order()
        return True

    def check_order(self) -> None:
        """Nothing is dropped where the wave is not open, and no wave opens without its vote.

        Whatever has the second revision is on record as having it.
        """
        rollout = self.rig.resource(self.name)["status"]["rollout"]
        behind = {name for entry in rollout.get("behind", []) for name in entry["clusters"]}
        has_it = {name for name in NAMES if value(self.rig, name, self.name) == "v2"}
        assert behind.isdisjoint(has_it)
        assert not has_it or rollout["revision"] == 2
        for cluster in NAMES[1:]:
            if not self.has_vote:
                assert value(self.rig, cluster, self.name) == "v1"
                assert value(self.rig, cluster, f"{self.name}-old") == "v1"

    @property
    def has_vote(self) -> bool:
        return any(f".{self.name}." in vote and ".canary." in vote for vote in self.rig.votes)

    def vote(self, wave: str) -> None:
        rollout = self.rig.resource(self.name)["status"]["rollout"]
        assert rollout["revision"] == 2
        self.rig.votes[f"{rollout['votes']}.{wave}.t"] = json.dumps({"vote": "pass"}).encode()

    async def begin(self) -> None:
        everywhere = {"clusters": [{"name": name} for name in NAMES]}
        self.rig.create(
            self.name,
            templates=templates("v1", self.name),
            placement=everywhere,
            rollout={"revisionHistoryLimit": 0},
            policy={"fuse": {"objects": 0, "clusters": 1}},
        )
        for _ in range(3):
            await self.rig.reconcile(self.name)

    async def roll_out(self) -> None:
        self.rig.edit(
            self.name,
            templates=templates("v2", self.name),
            rollout=ROLLOUT | {"revisionHistoryLimit": 0},
        )
        for wave in ("canary", "remaining"):
            for _ in range(4):
                await self.round()
            self.vote(wave)
        for _ in range(5):
            await self.round()

    def check_end(self) -> None:
        status = self.rig.resource(self.name)["status"]
        assert status["rollout"]["phase"] == "Complete"
        assert status["rollout"]["revision"] == 2
        assert "held" not in status
        for cluster in NAMES:
            assert value(self.rig, cluster, self.name) == "v2"
            assert value(self.rig, cluster, f"{self.name}-old") == ""
        names = {entry["name"] for entry in status["intent"]["objects"]}
        assert names == {self.name}
        uid = self.rig.resource(self.name)["metadata"]["uid"]
        revisions = [
            revision
            for revision in self.rig.hub.list(REVISIONS)
            if revision["metadata"]["labels"]["fleetbus.dev/owner-uid"] == uid
        ]
        assert max(revision["revision"] for revision in revisions) == 2


@pytest.mark.full  # CI runs the cut of `make faults-distributor`
@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize(("where", "verb", "resource"), POINTS)
async def test_d18_d2_it_resumes_wherever_it_dies(
    rig: Rig, where: str, verb: str, resource: str, after_commit: bool
):
    """Die before or after the n-th write of a kind, for each n that there is."""
    for number in range(1, _MOST_WRITES):
        story = Story(rig, f"x{number}")
        await story.begin()
        faults = rig.clusters[where].faults
        rule = faults.add(
            Abort(after_commit=after_commit), verb=verb, resource=resource, nth=number
        )
        await story.roll_out()
        was_hit = rule.hits > 0
        rule.remove()
        story.check_end()
        if not was_hit:
            assert number > 1, "the rollout has no such write"
            break
