"""Mistakes in a spec, each on one of two clusters: what is said, what goes on, what stays.

Before the mistake both clusters have the ConfigMaps `m` and `old`. The edit with the mistake drops
`old` and adds `new`: so the sound cluster shows that it proceeds, and both show what is pruned.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fleetbus_distributor.errors import RenderError
from fleetbus_distributor.render.customize import render_for
from fleetbus_distributor.render.spec import read_spec
from fleetbus_distributor.render.template import Context
from fleetbus_distributor.targets.target import RARELY
from support.api.custom_resource_definitions import CRDS, definition
from support.objects import config_map
from support.rigs.distributor import Rig
from support.rows import each_row

CONFIG_MAPS = "v1/configmaps"
PLACED = {"clusters": [{"name": "t1"}, {"name": "t2"}]}


def patch(path: str, value: Any = None, op: str = "replace", name: str = "m") -> dict[str, Any]:
    action = {"op": op, "path": path} | ({} if value is None else {"value": value})
    return {
        "customize": {"clusters": [{"name": "t1", "target": {"name": name}, "action": [action]}]}
    }


def merge(**part: Any) -> dict[str, Any]:
    return {
        "customize": {"clusters": [{"name": "t1", "target": {"name": "m"}, "merge": part}]},
    }


WIDGET = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
BAD: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    # mistake → the edit, the state of t1, parts of its message
    "a label that the cluster lacks": (
        {"templates": [config_map("m", k="${cluster.labels.zone}")]},
        "Failed/RenderFailed",
        ["spec.templates[0].data.k", "t1", "'zone'"],
    ),
    "an unknown variable": (
        patch("/data/k", "${vars.nope}"),
        "Failed/RenderFailed",
        ["spec.customize.clusters[0].action[0].value", "'nope'"],
    ),
    "an unknown variable in a merge patch": (
        merge(data={"k": "${vars.nope}"}),
        "Failed/RenderFailed",
        ["spec.customize.clusters[0].merge.data.k", "'nope'"],
    ),
    "an unknown expression": (
        patch("/data/k", "${cluster.region}"),
        "Failed/RenderFailed",
        ["spec.customize.clusters[0].action[0].value", "cluster.region"],
    ),
    "a patch that does not apply": (
        patch("/data/none", op="remove"),
        "Failed/PatchFailed",
        ["spec.customize.clusters[0].action[0]", "remove /data/none", "ConfigMap m"],
    ),
    "a patch whose test fails": (
        patch("/data/k", "w", op="test"),
        "Failed/PatchFailed",
        ["spec.customize.clusters[0].action[0]", "test /data/k", "ConfigMap m"],
    ),
    "a patch into a scalar": (
        patch("/data/k/deep", "w", op="add"),
        "Failed/PatchFailed",
        ["spec.customize.clusters[0].action[0]", "add /data/k/deep", "ConfigMap m"],
    ),
    "no name after a patch": (
        merge(metadata={"name": None}),
        "Failed/RenderFailed",
        ["spec.templates[0].metadata.name", "required"],
    ),
    "no kind after a patch": (merge(kind=None), "Failed/RenderFailed", ["spec.templates[0].kind"]),
    "metadata that is no object": (
        patch("/metadata", "none"),
        "Failed/RenderFailed",
        ["spec.templates[0].metadata", "object"],
    ),
    "two templates that name the same object after a patch": (
        {
            "templates": [config_map("m"), config_map("n")],
            **patch("/metadata/name", "m", name="n"),
        },
        "Failed/RenderFailed",
        ["spec.templates[1]", "spec.templates[0]", "ConfigMap default/m"],
    ),
    "a template over 1 MB after a patch": (
        {"vars": {"big": "x" * 400_000}, **merge(data=dict.fromkeys("abc", "${vars.big}"))},
        "Failed/RenderFailed",
        ["larger than 1048576 bytes"],
    ),
    "a field that the server refuses": (
        patch("/data/k", {"not": "a string"}),
        "Failed/Invalid",
        ["ConfigMap default/m", ".data.k"],
    ),
    "a name that the server refuses": (
        patch("/metadata/name", "Not_A_Name"),
        "Failed/Invalid",
        ["ConfigMap default/Not_A_Name", "metadata.name"],
    ),
    "a namespace that is missing": (
        patch("/metadata/namespace", "none", op="add"),
        "Waiting/NamespaceMissing",
        ["'none'", "createNamespaces"],
    ),
    "a kind that is unknown there": (
        {"templates": [config_map("m"), WIDGET]},
        "Waiting/NoMatch",
        ["Widget default/w", "example.com/v1"],
    ),
}


async def both_placed(rig: Rig):
    rig.clusters["t2"].create(CRDS, definition("example.com", "widgets", "Widget"))
    rig.fleet.join("t2", zone="a")
    rig.create(templates=[config_map("m"), config_map("old")], placement=PLACED)
    await rig.reconcile()
    assert set(rig.states().values()) == {"Applied"}


@pytest.mark.parametrize(("edit", "state", "texts"), BAD.values(), ids=BAD)
async def test_d1_a_mistake_on_one_cluster_is_named_and_stops_no_other(
    rig: Rig, edit: dict[str, Any], state: str, texts: list[str]
):
    await both_placed(rig)
    templates = [*edit.get("templates", [config_map("m")]), config_map("new")]
    changes: dict[str, Any] = {**edit}
    changes["templates"] = templates
    rig.edit(**changes)
    attempts = await run_for_a_minute(rig)
    states = rig.states()
    assert states["t1"].startswith(state)
    assert states["t2"] == "Applied"
    message = rig.entry("t1")["message"]
    assert [text for text in texts if text not in message] == [], message
    ready = rig.condition()
    assert (ready["status"], ready["message"].startswith("t1: ")) == ("False", True)
    assert [text for text in texts if text not in ready["message"]] == []
    assert rig.has("t2", CONFIG_MAPS, "new")
    # Without a whole desired state nothing is pruned anywhere; otherwise not where it failed.
    is_whole = state not in ("Failed/RenderFailed", "Failed/PatchFailed")
    assert rig.has("t1", CONFIG_MAPS, "old")
    assert rig.has("t2", CONFIG_MAPS, "old") is not is_whole
    assert rig.get("t1", CONFIG_MAPS, "m")["data"] == {"k": "v"}
    # What a retry cannot heal is not retried over and over; waiting costs reads only.
    assert attempts <= (1 if state.startswith("Failed") else 0), rig.writes("t1")


async def run_for_a_minute(rig: Rig) -> int:
    """Run the rounds that are due within a minute of pretended time; count refused writes on t1.

    Rounds are due when the last one, or one for a cluster, has asked for them.
    """
    count, now = len(rig.writes("t1")), timedelta()
    due: dict[str, timedelta] = {"": now}
    while due and min(due.values()) < RARELY:
        cluster, now = min(due.items(), key=lambda item: item[1])
        del due[cluster]
        result = await (rig.repair(cluster) if cluster else rig.reconcile())
        later = {name: after for (_, name), after in rig.later.items()}
        rig.later.clear()
        if result and result.requeue_after is not None:
            later[cluster] = result.requeue_after
        due |= {name: now + after for name, after in later.items()}
    return sum(write.status >= 400 for write in rig.writes("t1")[count:])


@each_row(
    ("spec", "field"),
    [
        ({"templates": [config_map("m"), config_map("m")]}, "spec.templates[1]"),
        ({"template": {**config_map("m"), "metadata": {"name": 1}}}, "spec.template.metadata.name"),
        ({"template": {"kind": "X", "metadata": {"name": "a"}}}, "spec.template.apiVersion"),
        ({"template": {**config_map("m"), "stringData": "x", "kind": "Secret"}}, "stringData"),
        ({"template": config_map("m", k="x" * 1_100_000)}, "larger than 1048576 bytes"),
        (
            {"template": config_map("m") | {"data": {"${vars.n}": "x"}}, "vars": {"n": 1}},
            "spec.template.data",
        ),
    ],
)
def test_d15_a_mistake_of_every_cluster_names_its_field(spec: dict[str, Any], field: str):
    with pytest.raises(RenderError) as refused:
        render_for(read_spec({"spec": spec}), Context("t1", {}, spec.get("vars", {})))
    assert field in str(refused.value)


async def test_t18_an_event_tells_an_object_that_cannot_be_changed_from_one_that_cannot_be_made(
    rig: Rig,
):
    """The reasons are those of multi_resource_operator."""
    rig.create(templates=[config_map("m", k={"not": "a string"})], placement=PLACED)
    await rig.reconcile()
    rig.edit(templates=[config_map("m")])
    await rig.reconcile()
    rig.edit(templates=[config_map("m", k={"not": "a string"})])
    await rig.reconcile()
    events = rig.hub.list("v1/events")
    reasons = [event["reason"] for event in events if event["type"] == "Warning"]
    assert sorted(reasons) == ["ApplyFailed", "UpdateFailed"]
