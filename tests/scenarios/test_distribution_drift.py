"""Drift on the bus (rules D13, D26): corrected, reported with its author, ignored, paused."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fleetbus.ownership import PAUSE_ANNOTATION
from support.eventually import eventually, never
from support.objects import config_map
from support.rigs.distribution import EVERYWHERE, HUB, IN_FULL, Distribution, distribution
from support.rigs.fleet import Rig
from support.rigs.scenario import QUIET, WITHIN

pytestmark = [IN_FULL, pytest.mark.timeout(600)]
Open = Callable[..., Awaitable[Rig]]
MAPS = "v1/configmaps"


def value(d: Distribution, cluster: str = "t2") -> str | None:
    return d.of(lambda obj: obj["data"].get("k"), MAPS, "m")[cluster]


def by_hand(d: Distribution, body: dict[str, Any], manager: str = "kubectl-edit") -> None:
    d.rig.clusters["t2"].patch(MAPS, "default", "m", body, manager=manager)


async def started(d: Distribution, **policy: Any) -> None:
    d.create(template=config_map(k="v1"), placement=EVERYWHERE, policy=policy)
    await d.applied()
    await d.rig.synced("core/configmaps")
    await d.quiet()


async def test_d13_drift_is_corrected_at_once_on_its_cluster_alone(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        await started(d)

        async def others_are_left_alone() -> bool:
            """Not so while the events of their joining and creation still arrive."""
            before = {name: len(d.asked(name, "/configmaps/m")) for name in ("t1", HUB)}
            by_hand(d, {"data": {"k": "by hand"}})
            await eventually(lambda: value(d) == "v1", WITHIN)
            await d.quiet()
            return {name: len(d.asked(name, "/configmaps/m")) for name in before} == before

        await eventually(others_are_left_alone, WITHIN)
        by_hand(d, {"data": {"theirs": "stays"}, "metadata": {"labels": {"team": "a"}}})
        await d.quiet()
        live = d.get("t2", MAPS, "m")
        assert live["data"] == {"k": "v1", "theirs": "stays"}
        assert live["metadata"]["labels"]["team"] == "a"
        await d.close()


async def test_d26_reported_drift_names_field_manager_and_time_and_no_value(
    open_rig: Open,
) -> None:
    async with distribution(open_rig) as d:
        await started(d, drift="Report")
        by_hand(d, {"data": {"k": "canary"}})
        await d.has_states(t1="Applied", t2="Drifted", t4="Applied")
        time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
        expected = rf"ConfigMap default/m: \.data\.k was changed by kubectl-edit at {time}"
        assert re.fullmatch(expected, d.entry("t2")["message"]), d.entry("t2")["message"]
        assert "canary" not in str(d.status())
        await d.stays_quiet()
        assert value(d) == "canary"
        # An edit does not take the field either, and says whose it is; the policy may.
        d.edit(template=config_map(k="v2"))
        await d.has_states(t1="Applied", t2="Conflict/FieldConflict", t4="Applied")
        assert "kubectl-edit" in d.entry("t2")["message"]
        d.edit(policy={"drift": "Correct"})
        await d.applied()
        assert value(d) == "v2"
        await d.close()


async def test_d26_ignored_drift_is_neither_reported_nor_corrected(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        await started(d, drift="Ignore")
        by_hand(d, {"data": {"k": "by hand"}})
        await d.stays_quiet()
        assert value(d) == "by hand"
        assert d.states() == {"t1": "Applied", "t2": "Applied", HUB: "Applied"}
        d.rig.clusters["t2"].delete(MAPS, "default", "m")
        await never(lambda: d.where(MAPS, "m") != ["t1", HUB], QUIET)
        assert d.states()["t2"] == "Applied"
        d.edit(policy={"drift": "Report"})
        await d.has_states(t1="Applied", t2="Drifted", t4="Applied")
        assert d.entry("t2")["message"] == "ConfigMap default/m was deleted on the cluster"
        d.edit(policy=None)
        await d.applied()
        assert value(d) == "v1"
        await d.close()


async def test_d26_a_paused_object_is_neither_changed_nor_deleted(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        await started(d)
        by_hand(d, {"metadata": {"annotations": {PAUSE_ANNOTATION: "incident 4711"}}})
        by_hand(d, {"data": {"k": "by hand"}})
        await d.has_states(t1="Applied", t2="Waiting/Paused", t4="Applied")
        await d.stays_quiet()
        assert value(d) == "by hand"
        d.delete()
        await eventually(lambda: d.where(MAPS, "m") == ["t2"], WITHIN)
        await never(lambda: not d.exists(), QUIET)
        by_hand(d, {"metadata": {"annotations": {PAUSE_ANNOTATION: None}}})
        await d.gone()
        assert d.where(MAPS, "m") == []
        await d.close(deleted=[f"{name} m" for name in ("t1", "t2", HUB)])
