"""`fleetbus plan` beside what the distributor then writes (rule D25), on the bus.

The plan is made by the command, in a process of its own; what the distributor has written is read
from the request logs of the API servers.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetbus_distributor.kind import API_VERSION, KIND
from support.eventually import eventually
from support.objects import config_map, deployment
from support.rigs.distribution import (
    AFTER_RETURN,
    EVERYWHERE,
    HUB,
    IN_FULL,
    Distribution,
    distribution,
)
from support.rigs.distributor import POD
from support.rigs.fleet import Rig

pytestmark = [IN_FULL, pytest.mark.timeout(600)]
Open = Callable[..., Awaitable[Rig]]
Object = dict[str, Any]
MAPS = "v1/configmaps"
CANARY: Object = {"name": "canary", "clusters": [{"name": "t1"}]}
_PLURALS = {
    "configmaps": "ConfigMap",
    "deployments": "Deployment",
    "namespaces": "Namespace",
    "pods": "Pod",
    "customresourcedefinitions": "CustomResourceDefinition",
    "databases": "Database",
}
_WRITES = {"create": "write", "change": "write", "delete": "delete"}
Actions = dict[str, list[str]]


class Planner:
    """Plans a manifest, does it, and compares."""

    def __init__(self, d: Distribution, folder: Path) -> None:
        self._d = d
        self._file = folder / "manifest.yaml"

    async def plan(self, spec: Object | None, *, status: int) -> Object:
        """The plan of a new spec, or of what is on the hub; nothing is written for it."""
        await self._d.quiet()
        before = self._counts()
        target = ["x"]
        if spec is not None:
            metadata = {"name": "x", "namespace": "default"}
            document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
            self._file.write_text(yaml.safe_dump({**document, "spec": spec}))
            target = ["-f", str(self._file)]
        store = ("--redis-url", str(self._d.rig.shared.redis_url))
        ended, output = await self._d.fleetbus("plan", *target, "-o", "json", *store)
        assert ended == status, output
        assert self.done(before) == {}, "a plan has written"
        (found,) = json.loads(output)["plans"]
        return found

    async def check(self, spec: Object, *clusters: str) -> Actions:
        """Plan, do it, compare, and plan again: then nothing is left; what was planned."""
        actions = actions_of(await self.plan(spec, status=2))
        before = self._counts()
        if self._d.exists():
            absent: Object = dict.fromkeys(self._d.resource()["spec"])
            self._d.edit(**(absent | spec))
        else:
            self._d.create(**spec)
        await self._d.applied(*clusters)
        await self._d.quiet()
        assert self.done(before) == writes_of(actions)
        assert actions_of(await self.plan(None, status=0)) == {}
        return actions

    def _counts(self) -> dict[str, int]:
        return {name: len(self._d.writes(name)) for name in self._d.rig.clusters}

    def done(self, before: Mapping[str, int]) -> Actions:
        """Cluster → `write Kind name` or `delete Kind name`, since these counts."""
        actions: Actions = {}
        for name, count in before.items():
            for write in self._d.writes(name)[count:]:
                _, plural, target = write.path.rsplit("/", 2)
                if plural in _PLURALS:
                    # the rest is status, events and revisions on the hub
                    verb = "delete" if write.verb == "delete" else "write"
                    actions.setdefault(name, []).append(f"{verb} {_PLURALS[plural]} {target}")
        return {name: sorted(done) for name, done in actions.items()}


def actions_of(plan: Object) -> Actions:
    """Cluster → `action Kind name`."""
    return {
        cluster["name"]: sorted(
            f"{o['action']} {o['kind']} {o['name']}" for o in cluster["objects"]
        )
        for cluster in plan["clusters"]
        if cluster["objects"]
    }


def writes_of(actions: Actions) -> Actions:
    """The writes that actions need; `recreate` is a deletion and a creation."""
    found: Actions = {}
    for name, planned in actions.items():
        for step in planned:
            action, _, suffix = step.partition(" ")
            verbs = ["delete", "write"] if action == "recreate" else [_WRITES[action]]
            found.setdefault(name, []).extend(f"{verb} {suffix}" for verb in verbs)
    return {name: sorted(done) for name, done in found.items()}


async def test_d25_a_plan_equals_the_writes_that_follow(open_rig: Open, tmp_path: Path) -> None:
    async with distribution(open_rig) as d:
        planner = Planner(d, tmp_path)
        first = {
            "templates": [
                config_map("stays", k="a"),
                config_map("goes", k="a"),
                deployment(image="web:1"),
            ],
            "placement": EVERYWHERE,
        }
        created = await planner.check(first)
        three = ["create ConfigMap goes", "create ConfigMap stays", "create Deployment web"]
        assert created == dict.fromkeys(("t1", "t2", HUB), three)

        second = {
            "templates": [
                config_map("stays", k="a"),
                config_map("comes", k="b"),
                deployment(image="web:2"),
            ],
            "placement": EVERYWHERE,
            "customize": {
                "clusters": [{"name": "t1", "merge": {"metadata": {"labels": {"l": "1"}}}}]
            },
        }
        plan = await planner.plan(second, status=2)
        (web,) = [o for o in plan["clusters"][0]["objects"] if o["kind"] == "Deployment"]
        assert web["checked"]
        assert any(line.startswith("-") and "web:1" in line for line in web["diff"])
        assert any(line.startswith("+") and "web:2" in line for line in web["diff"])
        changed = await planner.check(second)
        assert "change ConfigMap stays" in changed["t1"]
        assert "change ConfigMap stays" not in changed["t2"]
        assert "delete ConfigMap goes" in changed["t2"]

        third = {**second, "placement": {"clusters": [{"name": "t1"}, {"name": "t2"}]}}
        dropped = await planner.check(third, "t1", "t2")
        assert set(dropped) == {HUB}


async def test_d25_types_namespaces_and_what_is_created_again(
    open_rig: Open, tmp_path: Path
) -> None:
    async with distribution(open_rig) as d:
        planner = Planner(d, tmp_path)
        database = {
            "apiVersion": "examples.fleetbus.dev/v1",
            "kind": "Database",
            "metadata": {"name": "main", "namespace": "team"},
            "spec": {"size": 1},
        }
        team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        spec = {
            "templates": [database, team, definition(), POD],
            "placement": {"clusters": [{"name": "t1"}, {"name": "t2"}]},
            "policy": {"recreate": True},
        }
        plan = await planner.plan(spec, status=2)
        (unchecked,) = [o for o in plan["clusters"][0]["objects"] if not o["checked"]]
        assert unchecked["kind"] == "Database", "its type does not exist yet"
        await planner.check(spec, "t1", "t2")
        # A Pod cannot be changed, so it is deleted and created again.
        changed = json.loads(json.dumps(spec))
        changed["templates"][3]["spec"]["restartPolicy"] = "Never"
        again = actions_of(await planner.plan(changed, status=2))
        recreated = [f"recreate Pod {POD['metadata']['name']}"]
        assert again == {"t1": recreated, "t2": recreated}


async def test_d25_conflicts_drift_waves_and_dead_clusters_are_in_the_plan(
    open_rig: Open, tmp_path: Path
) -> None:
    async with distribution(open_rig) as d:
        planner = Planner(d, tmp_path)
        spec = {"template": config_map(k="v1"), "placement": EVERYWHERE, "rollout": {}}
        await planner.check(spec)
        d.edit(policy={"drift": "Report"})
        await d.applied()
        await d.rig.synced("core/configmaps")
        d.rig.clusters["t2"].patch(MAPS, "default", "m", {"data": {"k": "by hand"}}, manager="me")
        await d.has_states(t1="Applied", t2="Drifted", t4="Applied")
        plan = await planner.plan(None, status=0)
        (cluster,) = [entry for entry in plan["clusters"] if entry["findings"]]
        assert (cluster["name"], cluster["findings"][0]["state"]) == ("t2", "Drifted")
        assert "was changed by me" in cluster["findings"][0]["message"]

        # The plan of a rollout is the wave that would open now.
        waves = {**spec, "rollout": {"waves": [CANARY], "gates": [{"name": "tests"}]}}
        plan = await planner.plan({**waves, "template": config_map(k="v2")}, status=2)
        assert actions_of(plan) == {"t1": ["change ConfigMap m"]} | {
            "t2": ["change ConfigMap m"]  # drift is corrected to what it has, policy Correct
        }
        assert [wave["phase"] for wave in plan["rollout"]["waves"]] == ["Open", "Waiting"]

        await d.rig.servers.stop("t1")
        plan = await planner.plan({**spec, "template": config_map(k="v3")}, status=1)
        (dead,) = [entry for entry in plan["clusters"] if entry["name"] == "t1"]
        assert dead["findings"][0]["state"] == "Unreachable"
        assert actions_of(plan)[HUB] == ["change ConfigMap m"]
        await d.rig.servers.start("t1")
        await eventually(lambda: d.states().get("t1") == "Applied", AFTER_RETURN)


def definition() -> Object:
    spec = {"type": "object", "properties": {"size": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "databases.examples.fleetbus.dev"},
        "spec": {
            "group": "examples.fleetbus.dev",
            "scope": "Namespaced",
            "names": {"plural": "databases", "singular": "database", "kind": "Database"},
            "versions": [version],
        },
    }
