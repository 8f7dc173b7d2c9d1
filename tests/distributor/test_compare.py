"""An object is compared as its API server compares it (rules D3, D13)."""

from __future__ import annotations

import copy

import pytest

from support.api.spellings import JAR, PAIRS, ZEROES, definition, texts
from support.rigs.distributor import CONFIG_MAP, CRDS, Rig

ON_T1 = {"clusters": [{"name": "t1"}]}
MAPS, DEPLOYMENTS, SERVICES = "v1/configmaps", "apps/v1/deployments", "v1/services"
JARS = "lab.example.org/v1/jars"


def shown(rig: Rig) -> list[str]:
    """The text in each of these places."""
    live = rig.get("t1", MAPS, "x")
    container = rig.get("t1", DEPLOYMENTS, "x")["spec"]["template"]["spec"]["containers"][0]
    jar = rig.get("t1", JARS, "x")["spec"]
    return [
        live["data"]["RELEASE"],
        live["metadata"]["annotations"]["note"],
        live["metadata"]["labels"]["version"].replace("none", ""),
        container["args"][0],
        container["env"][0].get("value", ""),
        jar["text"],
        jar["either"],
        jar["open"]["deep"][0],
        jar["open"]["deep"][1]["in"],
    ]


async def test_d3_a_text_that_looks_like_a_number_is_a_text(rig: Rig):
    rig.clusters["t1"].create(CRDS, definition(JAR))
    rig.create(templates=texts("2"), placement=ON_T1)
    for value in PAIRS:
        rig.edit(templates=texts(value))
        await rig.reconcile()
        assert rig.states() == {"t1": "Applied"}
        assert shown(rig) == [value] * 9


async def test_d13_a_text_that_looks_the_same_number_is_drift(rig: Rig):
    rig.create(template={**CONFIG_MAP, "data": {"k": "1.1"}}, placement=ON_T1)
    await rig.reconcile()
    rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "1.10"}})
    await rig.repair("t1")
    assert rig.get("t1", MAPS, "m")["data"] == {"k": "1.1"}
    rig.edit(policy={"drift": "Report"})
    await rig.reconcile()
    rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "1.100"}})
    await rig.repair("t1")
    assert rig.entry("t1")["state"] == "Drifted"
    assert ".data.k was changed" in rig.entry("t1")["message"]


def patches(rig: Rig) -> int:
    return len(rig.writes("t1"))


@pytest.mark.parametrize("drift", ["Correct", "Report", "Ignore"])
async def test_d3_an_idle_cluster_is_asked_nothing(rig: Rig, drift: str):
    """A server omits what is zero, and writes a quantity in its own way: that is no drift."""
    rig.create(templates=ZEROES, placement=ON_T1, policy={"drift": drift})
    await rig.reconcile()
    before = patches(rig)
    versions = [
        rig.get("t1", resource, "x")["metadata"]["resourceVersion"]
        for resource in (DEPLOYMENTS, SERVICES)
    ]

    async def look() -> None:
        for _ in range(3):
            await rig.reconcile()
            await rig.repair("t1")
            assert rig.states() == {"t1": "Applied"}, rig.entry("t1")
            assert rig.condition()["reason"] != "Drifted"

    await look()
    assert patches(rig) == before, "the answers to the first applies say enough"
    rig.restart()
    await look()
    count = patches(rig) - before
    assert count <= len(ZEROES), "a new process asks once about each object"
    status = {"status": {"observedGeneration": 1, "replicas": 1}}
    rig.clusters["t1"].patch(DEPLOYMENTS, "default", "x", status, subresource="status")
    labels = {"metadata": {"labels": {"theirs": "x"}, "annotations": {"theirs": "x"}}}
    rig.clusters["t1"].patch(SERVICES, "default", "x", labels)
    await look()
    assert patches(rig) == before + count, "what is not ours changes no answer"
    assert [
        rig.get("t1", DEPLOYMENTS, "x")["metadata"]["generation"],
        len(versions),
    ] == [1, 2]


async def test_d13_a_zero_that_somebody_changes_is_drift(rig: Rig):
    rig.create(template=ZEROES[0], placement=ON_T1, policy={"drift": "Report"})
    await rig.reconcile()
    other = {"spec": {"template": {"spec": {"hostNetwork": True}}}}
    rig.clusters["t1"].patch(DEPLOYMENTS, "default", "x", other, manager="kubectl-edit")
    await rig.repair("t1")
    assert rig.entry("t1")["state"] == "Drifted"
    field = ".spec.template.spec.hostNetwork was changed by kubectl-edit"
    assert field in rig.entry("t1")["message"]
    count = patches(rig)
    rig.edit(policy={"drift": "Correct"})
    await rig.reconcile()
    assert "hostNetwork" not in rig.get("t1", DEPLOYMENTS, "x")["spec"]["template"]["spec"]
    assert rig.states() == {"t1": "Applied"}
    assert patches(rig) > count


async def test_d13_a_pause_ends_where_nothing_differs(rig: Rig):
    paused = {"metadata": {"annotations": {"fleetbus.dev/pause": "while I look"}}}
    rig.create(template=ZEROES[0], placement=ON_T1)
    await rig.reconcile()
    rig.clusters["t1"].patch(DEPLOYMENTS, "default", "x", paused)
    rig.restart()
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}


async def test_d13_a_fight_ends_with_a_condition(rig: Rig):
    """Another controller removes a label of ours after each apply; no conflict shows that."""
    template = copy.deepcopy(CONFIG_MAP)
    template["metadata"]["labels"] = {"tier": "gold"}
    rig.create(template=template, placement=ON_T1)
    await rig.reconcile()
    before = patches(rig)

    async def fight(rounds: int) -> None:
        for _ in range(rounds):
            gone = {"metadata": {"labels": {"tier": None}}}
            rig.clusters["t1"].patch(MAPS, "default", "m", gone, manager="cleaner")
            await rig.repair("t1")
            await rig.reconcile()

    await fight(12)
    sent = patches(rig)
    assert rig.states() == {"t1": "Conflict/KeepsChanging"}
    assert ".metadata.labels.tier" in rig.entry("t1")["message"]
    assert "gold" not in rig.entry("t1")["message"]
    assert sent - before - 12 <= 6, "five corrections and a dry run"
    for _ in range(5):
        await rig.reconcile()
    assert patches(rig) == sent, "nothing at all is sent while nothing changes"
    rig.edit(policy={"conflict": "Overwrite"})
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}, "another policy may work"
    await fight(12)
    assert rig.states() == {"t1": "Conflict/KeepsChanging"}
    template["metadata"]["labels"] = {"tier": "silver"}
    rig.edit(template=template)
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    assert rig.get("t1", MAPS, "m")["metadata"]["labels"]["tier"] == "silver"
