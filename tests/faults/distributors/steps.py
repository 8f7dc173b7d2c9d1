"""Directed steps: orders of events that the dice seldom throw, one for each guard.

What a step sees at once it yields as a violation; the rest is found by the checks of the history
and of the final state. Each step works on a MultiClusterResource of its own and deletes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, Final

from faults.distributors.agent_steps import AGENT_STEPS
from faults.distributors.settings import (
    AGENT,
    HUB,
    MAPS,
    NAMESPACE,
    NEW_NAME,
    RENAMED,
    TARGETS,
)
from faults.distributors.stage import ENOUGH, WITHIN, Stage, Step, at
from faults.rig.records import Violation
from fleetbus.ownership import PROTECT_ANNOTATION
from fleetbus_emulator.apiserver import Delay, StallWatch

Json = dict[str, Any]
_BUDGET: Final = 50
_OWNERS, _OBJECTS = 8, 7


async def relabelled(stage: Stage) -> AsyncGenerator[Violation]:
    """D8: a typo in the labels of three clusters of four deletes nothing."""
    for name in TARGETS:
        stage.world.labels(name, fused="yes")
    stage.put("s-fuse", {"clusterSelector": {"matchLabels": {"fused": "yes"}}})
    await stage.placed("s-fuse", *TARGETS)
    for name in TARGETS[:3]:
        stage.world.labels(name, fused=None)
    await asyncio.sleep(ENOUGH)
    gone = [name for name in TARGETS if not stage.copy(name, "s-fuse")]
    if gone:
        yield Violation("D8 fuse", f"relabelled clusters lost their objects: {gone}")
    for name in TARGETS[:3]:
        stage.world.labels(name, fused="yes")
    await stage.drop("s-fuse")


async def many_owners(stage: Stage) -> AsyncGenerator[Violation]:
    """D8: one relabelled cluster empties no more than the budget of the fleet."""
    for name in TARGETS:
        stage.world.labels(name, budget="yes")
    owners = [f"s-budget{number}" for number in range(_OWNERS)]
    objects = {owner: [f"{owner}-{n}" for n in range(_OBJECTS)] for owner in owners}
    for one, parts in objects.items():
        selector = {"clusterSelector": {"matchLabels": {"budget": "yes"}}}
        stage.put(one, selector, *(stage.template(part, k="v") for part in parts))
    await stage.until(lambda: all(stage.ready(owner) for owner in owners))
    stage.world.labels("t1", budget=None)
    await asyncio.sleep(ENOUGH)
    every = [part for parts in objects.values() for part in parts]
    gone = sum(stage.copy("t1", part) is None for part in every)
    if gone > _BUDGET:
        yield Violation("D8 budget", f"{gone} objects of {_OWNERS} owners were deleted at once")
    stage.world.labels("t1", budget="yes")
    await stage.drop(*owners)


async def stranger(stage: Stage) -> AsyncGenerator[Violation]:
    """D4, D5: an object that took the place of a copy is neither changed nor deleted."""
    stage.put("s-strange", at("t1", "t2"))
    await stage.placed("s-strange", "t1", "t2")
    await stage.stop_all()
    uid = stage.take_place("t1", "s-strange")
    await stage.start_all()
    await asyncio.sleep(ENOUGH)
    stage.put("s-strange", at("t2"))
    await stage.acted("s-strange")
    if stage.uid("t1", "s-strange") != uid:
        yield Violation("D5 stranger", "an object of somebody else was deleted")
    stage.remove("t1", "s-strange")
    await stage.drop("s-strange")


async def replaced(stage: Stage) -> AsyncGenerator[Violation]:
    """D5: an object that takes the place of a copy while its deletion is under way survives."""
    stage.put("s-race", at("t1", "t2"))
    await stage.placed("s-race", "t1", "t2")
    late = Delay(timedelta(seconds=1))
    rule = stage.world.rig.clusters["t1"].faults.add(late, verb="delete", user_agent=AGENT)
    stage.put("s-race", at("t2"))
    await stage.until(lambda: rule.hits)
    uid = stage.take_place("t1", "s-race")
    await stage.acted("s-race")
    rule.remove()
    if stage.uid("t1", "s-race") != uid:
        yield Violation("D5 precondition", "the object that took its place was deleted")
    stage.remove("t1", "s-race")
    await stage.drop("s-race")


async def swapped(stage: Stage) -> AsyncGenerator[Violation]:
    """W13: while two kubeconfigs are exchanged, nobody writes to the wrong cluster."""
    stage.put("s-swap", at("t1"))
    await stage.placed("s-swap", "t1")
    stage.world.point("t1", "t3")
    stage.world.point("t3", "t1")
    await asyncio.sleep(1)
    stage.put("s-swap", at("t1"), stage.template("s-swap", k="new"))
    await asyncio.sleep(ENOUGH)
    if stage.copy("t3", "s-swap"):
        yield Violation("W13 wrong cluster", "an object of t1 was written to t3")
    stage.world.point("t1", "t1")
    stage.world.point("t3", "t3")
    await stage.placed("s-swap", "t1")
    stage.remove("t3", "s-swap")
    await stage.drop("s-swap")


async def unrendered(stage: Stage) -> AsyncGenerator[Violation]:
    """D1: a cluster whose template cannot be rendered keeps its objects."""
    template = stage.template("s-render", region="${cluster.labels.region}")
    stage.put("s-render", at(*TARGETS), template)
    await stage.placed("s-render", *TARGETS)
    uid = stage.uid("t2", "s-render")
    stage.world.labels("t2", region=None)
    await asyncio.sleep(ENOUGH)
    if stage.uid("t2", "s-render") != uid:
        yield Violation("D1 unrendered", "an object was deleted whose template has an error")
    stage.world.labels("t2", region="r-t2")
    await stage.drop("s-render")


async def crashed(stage: Stage) -> AsyncGenerator[Violation]:
    """D2: what was applied just before a crash is on record, and goes where nobody wants it."""
    stage.processes.arm("after PATCH target/configmaps")
    stage.put("s-crash", at("t1"))
    await stage.processes.death(WITHIN)
    await stage.stop_all()
    stage.put("s-crash", at("t2"))
    await stage.start_all()
    if not await stage.until(lambda: not stage.copy("t1", "s-crash")):
        yield Violation("D2 crash", "an object that was applied before a crash was left over")
        stage.remove("t1", "s-crash")
    await stage.drop("s-crash")


async def unreachable(stage: Stage) -> AsyncGenerator[Violation]:
    """D7: a cluster that cannot be reached keeps a deleted resource until its objects are gone."""
    stage.put("s-away", at("t1", "t3"))
    await stage.placed("s-away", "t1", "t3")
    await stage.world.rig.servers.partition("t3")
    stage.users.delete("s-away")
    await asyncio.sleep(ENOUGH)
    await stage.world.rig.servers.heal("t3")
    if not await stage.until(lambda: not stage.copy("t3", "s-away")):
        yield Violation("D7 let go", "an object of a cluster that was away was left over")
        stage.remove("t3", "s-away")
    await stage.drop("s-away")


async def vanished(stage: Stage) -> AsyncGenerator[Violation]:
    """D7: a cluster that vanishes without an unjoin stays on record, and is cleaned up later."""
    stage.put("s-gone", at("t1", RENAMED))
    await stage.placed("s-gone", "t1", RENAMED)
    stage.world.leave(RENAMED, recorded=False)
    await asyncio.sleep(1)
    stage.put("s-gone", at("t1"))
    await stage.acted("s-gone")
    stage.world.join(RENAMED, RENAMED)
    if not await stage.until(lambda: not stage.copy(RENAMED, "s-gone")):
        yield Violation("D7 vanished", "an object of a cluster that came back was left over")
        stage.remove(RENAMED, "s-gone")
    await stage.drop("s-gone")


async def late_labels(stage: Stage) -> AsyncGenerator[Violation]:
    """D1: a deletion that old labels ask for is checked against those that the hub has."""
    for name in TARGETS:
        stage.world.labels(name, late="yes")
    placement = {"clusterSelector": {"matchLabels": {"late": "yes"}}}
    stage.put("s-late", placement)
    await stage.placed("s-late", *TARGETS)
    uid = stage.uid("t1", "s-late")
    stage.put("s-late", placement, policy={"suspend": True})
    await asyncio.sleep(1)
    stage.world.labels("t1", late=None)
    await asyncio.sleep(1)
    faults = stage.world.rig.clusters[HUB].faults
    rule = faults.add(StallWatch(), resource="clusters")
    stage.world.labels("t1", late="yes")
    stage.put("s-late", placement)
    await stage.acted("s-late")
    rule.remove()
    if stage.uid("t1", "s-late") != uid:
        yield Violation("D1 labels", "an object was deleted because of labels of a moment ago")
    await stage.drop("s-late")


async def copied(stage: Stage) -> AsyncGenerator[Violation]:
    """D4, D5: an object that was restored from another cluster's backup is not deleted."""
    stage.put("s-copy", at("t1", "t2"))
    await stage.placed("s-copy", "t1", "t2")
    await stage.stop_all()
    metadata: Json = (stage.copy("t1", "s-copy") or {}).get("metadata", {})
    marks = {key: metadata.get(key, {}) for key in ("labels", "annotations")}
    uid = stage.take_place("t2", "s-copy", **marks)
    stage.put("s-copy", at("t1"))
    await stage.start_all()
    await stage.acted("s-copy")
    if stage.uid("t2", "s-copy") != uid:
        yield Violation("D5 copy", "an object that is marked for another cluster was deleted")
    stage.remove("t2", "s-copy")
    await stage.drop("s-copy")


async def two_names(stage: Stage) -> AsyncGenerator[Violation]:
    """D5: what moves to another name of its own cluster is not deleted."""
    stage.put("s-names", at(RENAMED))
    await stage.placed("s-names", RENAMED)
    uid = stage.uid(RENAMED, "s-names")
    stage.world.join(NEW_NAME, RENAMED)
    await stage.hub_knows(NEW_NAME)
    stage.put("s-names", at(NEW_NAME))
    await stage.acted("s-names")
    if stage.uid(RENAMED, "s-names") != uid:
        yield Violation("D5 alias", "an object was deleted that another name of its cluster wants")
    stage.put("s-names", at(RENAMED))
    stage.world.leave(NEW_NAME, recorded=True)
    stage.world.names.pop(NEW_NAME)
    await asyncio.sleep(1)
    await stage.drop("s-names")


async def protected(stage: Stage) -> AsyncGenerator[Violation]:
    """D5: what is protected on its cluster is never deleted."""
    stage.put("s-protect", at("t1", "t2"))
    await stage.placed("s-protect", "t1", "t2")
    uid = stage.uid("t1", "s-protect")
    patch = {"metadata": {"annotations": {PROTECT_ANNOTATION: "true"}}}
    stage.world.rig.clusters["t1"].patch(MAPS, NAMESPACE, "s-protect", patch)
    stage.put("s-protect", at("t2"))
    await stage.acted("s-protect")
    if stage.uid("t1", "s-protect") != uid:
        yield Violation("D5 protected", "a protected object was deleted")
    stage.remove("t1", "s-protect")
    await stage.drop("s-protect")


async def chunked(stage: Stage) -> AsyncGenerator[Violation]:
    """D2: a crash while the chunks of an inventory are exchanged leaves a whole one."""
    parts = [f"s-chunk-{number}" for number in range(12)]
    stage.put("s-chunk", at(*TARGETS), *(stage.template(name, k="v") for name in parts))
    await stage.until(lambda: stage.ready("s-chunk"))
    for side in ("before", "after"):
        stage.processes.arm(f"{side} PATCH hub/inventorychunks")
        templates = [
            stage.template(name, k=side) for name in parts[: -1 if side == "before" else None]
        ]
        stage.put("s-chunk", at(*TARGETS[:3]), *templates)
        await stage.processes.death(3)
        stage.processes.arm("")
        await stage.processes.start()
        stage.put("s-chunk", at(*TARGETS), *templates)
        if not await stage.until(lambda: stage.ready("s-chunk")):
            conditions = (stage.users.read("s-chunk") or {}).get("status", {}).get("conditions")
            yield Violation("D2 chunks", f"the inventory was not whole after a crash: {conditions}")
    await stage.drop("s-chunk")


async def unvoted(stage: Stage) -> AsyncGenerator[Violation]:
    """D17: without a vote a new version stays on the clusters of the first wave."""
    gates = [{"name": "test"}]
    waves = [{"name": "canary", "clusters": [{"name": "t1"}]}]
    rollout = {"waves": waves, "gates": gates}
    stage.put("s-wave", at("t1", "t2"), rollout={})
    await stage.placed("s-wave", "t1", "t2")
    new = stage.template("s-wave", k="new")
    stage.put("s-wave", at("t1", "t2"), new, rollout=rollout)
    await stage.until(lambda: (stage.copy("t1", "s-wave") or {}).get("data") == {"k": "new"})
    await asyncio.sleep(ENOUGH)
    if (stage.copy("t2", "s-wave") or {}).get("data") == {"k": "new"}:
        yield Violation("D17 vote", "the second wave opened without a vote")
    await stage.drop("s-wave")


STEPS: Final[dict[str, Step]] = {
    step.__name__: step
    for step in (
        relabelled,
        many_owners,
        stranger,
        replaced,
        swapped,
        unrendered,
        crashed,
        unreachable,
        vanished,
        late_labels,
        copied,
        two_names,
        protected,
        chunked,
        unvoted,
        *AGENT_STEPS,
    )
}
