"""The cost of rendering a small MultiClusterResource (rule D15)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbus.clusters.info import ClusterInfo
from fleetbus_distributor.errors import CustomizeError, RenderError
from fleetbus_distributor.render import draft as drafts
from fleetbus_distributor.render import work as limits
from fleetbus_distributor.render.customize import render_for
from fleetbus_distributor.render.draft import Renderer
from fleetbus_distributor.render.spec import Spec, read_spec
from fleetbus_distributor.render.template import Context
from fleetbus_distributor.render.work import MAX_WORK, Work
from support.full import examples
from support.rigs.distributor import CONFIG_MAP, Rig

LIMIT = 256 * 1024
"""Smaller than the real one: measuring memory takes time."""
ACTIONS = 200
"""As many as an entry of `spec.customize` may have."""
BULK = {"bulk": {"a": ["v"] * 64}, "list": [0] * 5_000}
REMOVED = {"op": "remove", "path": "/bulk"}
NESTED: list[dict[str, Any]] = [{"op": "add", "path": f"/n{n}", "value": {}} for n in range(3000)]


def copies(count: int) -> list[dict[str, Any]]:
    return [{"op": "copy", "from": "/bulk", "path": f"/bulk/c{n}"} for n in range(count)]


def spec_of(actions: list[dict[str, Any]], *, entries: int = 1, **fields: Any) -> dict[str, Any]:
    shared = {"name": "eu1", **fields.pop("entry", {})}
    batches = [actions[at : at + ACTIONS] for at in range(0, max(1, len(actions)), ACTIONS)]
    changes = [{**shared, "action": batch} for batch in batches] * entries
    return {"template": {**CONFIG_MAP, **BULK}, "customize": {"clusters": changes}, **fields}


BOMBS: dict[str, dict[str, Any]] = {
    "copies": spec_of(copies(30)),
    "copies that are removed at the end": spec_of([*copies(17), REMOVED]),
    "copies over one path": spec_of(
        [*copies(8), *[{"op": "copy", "from": "/bulk", "path": "/other"}] * 1000]
    ),
    "variables": spec_of(
        [{"op": "add", "path": "/x", "value": "${vars.big}"}] * 200, vars={"big": ["v"] * 10_000}
    ),
    "variables in a longer string": spec_of(
        [{"op": "add", "path": "/x", "value": "-" + "${vars.big}" * 50}] * 200,
        vars={"big": "v" * 2_000},
    ),
    "merges": spec_of(
        [], entries=200, entry={"merge": {"x": "${vars.big}"}}, vars={"big": ["v"] * 10_000}
    ),
    "tests": spec_of(
        [{"op": "test", "path": "/list", "value": "${vars.l}"}] * 200, vars={"l": [0] * 5_000}
    ),
    "inserts at the front of a list": spec_of(
        [{"op": "add", "path": "/list/0", "value": 1}, {"op": "remove", "path": "/list/0"}] * 20_000
    ),
    "moves in a list": spec_of([{"op": "move", "from": "/list/0", "path": "/list/9"}] * 20_000),
    "values that are lists": spec_of([{"op": "add", "path": "/x", "value": ["v"] * 5_000}] * 200),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_d15_work_is_limited_also_if_nothing_of_it_is_left(
    bomb: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "MAX_WORK", LIMIT)
    spec, work = read_spec({"spec": bomb}), Work()
    tracemalloc.start()
    with pytest.raises(RenderError, match=f"larger than {LIMIT} bytes"):
        render_for(spec, Context("eu1", {}, spec.vars), work)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * LIMIT
    assert work.spent < 2 * LIMIT


def test_d15_what_moves_nest_is_refused_before_anything_recurses():
    moves = [{"op": "move", "from": f"/n{n}", "path": f"/n{n + 1}/n"} for n in range(2999)]
    spec = read_spec({"spec": spec_of([*NESTED, *moves])})
    with pytest.raises(RenderError, match="nested deeper than 100"):
        render_for(spec, Context("eu1", {}, {}))
    copied = {"op": "copy", "from": "/n2999", "path": "/x"}
    spec = read_spec({"spec": spec_of([*NESTED, *moves, copied])})
    with pytest.raises(RenderError, match="nested deeper than 100"):
        render_for(spec, Context("eu1", {}, {}))


def test_d15_a_deep_variable_is_refused_by_its_field():
    deep: Any = "x"
    for _ in range(150):
        deep = [deep]
    spec = read_spec(
        {"spec": {"template": {**CONFIG_MAP, "x": "${vars.deep}"}, "vars": {"deep": deep}}}
    )
    with pytest.raises(RenderError, match=r"spec\.template\.x: nested deeper than 100"):
        render_for(spec, Context("eu1", {}, spec.vars))


SMALL: dict[str, Any] = {**CONFIG_MAP, "a": {"b": ["x", {"a": 1}]}, "b": [[], 1]}
VALUES: list[Any] = [1, "x", ["y"], {"b": {}}, "${vars.v}", None, ["a=b", 1]]
POINTER = st.lists(st.sampled_from(["a", "b", "0", "-", "data", "9" * 5000]), max_size=4).map(
    lambda parts: "".join(f"/{segment}" for segment in parts)
)
ACTION: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": POINTER,
        "from": POINTER,
    },
    optional={"value": st.sampled_from(VALUES)},
)


@given(actions=st.lists(ACTION, max_size=8), merge=st.none() | st.just({"a": {"b": None}}))
@settings(max_examples=examples(150))
def test_d15_any_patches_render_or_are_refused(actions: list[dict[str, Any]], merge: Any):
    fields: dict[str, Any] = {"entry": {"merge": merge}} if merge else {}
    spec = read_spec({"spec": spec_of(actions, vars={"v": {"a": [1]}}, **fields, template=SMALL)})
    before = spec.model_dump_json()
    with contextlib.suppress(RenderError, CustomizeError):
        objects, _ = render_for(spec, Context("eu1", {}, spec.vars))
        json.dumps(objects)
    assert spec.model_dump_json() == before, "a patch has changed the spec"


def fleet(count: int) -> list[ClusterInfo]:
    return [
        ClusterInfo(name=f"c{n:03}", labels={}, hub=False, provider="test", config=None)
        for n in range(count)
    ]


def everywhere(count: int, **fields: Any) -> Spec:
    placed = [{"name": each_cluster.name} for each_cluster in fleet(count)]
    return read_spec(
        {"spec": {"template": CONFIG_MAP, "placement": {"clusters": placed}, **fields}}
    )


async def test_d15_the_work_for_all_clusters_is_limited(monkeypatch: pytest.MonkeyPatch):
    renderer = Renderer()
    drafted = await renderer.draft(everywhere(6), fleet(6), "hub")
    assert not drafted.problems
    work = Work()
    render_for(everywhere(1), Context("c000"), work)
    monkeypatch.setattr(drafts, "MAX_FLEET_WORK", 4 * work.spent)
    for _ in range(2):  # also when it comes from the cache
        limited = await renderer.draft(everywhere(6), fleet(6), "hub")
        assert list(limited.objects) == ["c000", "c001", "c002", "c003", "c004"]
        assert limited.problems["c005"].reason == "RenderFailed"
        assert "for all clusters" in limited.problems["c005"].message


async def test_d15_a_cancelled_round_gives_its_thread_back(monkeypatch: pytest.MonkeyPatch):
    begun, may_go_on, rendered = threading.Event(), threading.Event(), list[str]()

    def slow(_spec: Spec, context: Context, _work: Work) -> tuple[list[Any], list[str]]:
        rendered.append(context.cluster)
        begun.set()
        may_go_on.wait(10)
        return [], []

    monkeypatch.setattr(drafts, "render_for", slow)
    before = threading.active_count()
    drawing = asyncio.create_task(Renderer().draft(everywhere(50), fleet(50), "hub"))
    await asyncio.to_thread(begun.wait, 10)
    drawing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await drawing
    may_go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert rendered == ["c000"]
    assert threading.active_count() <= before + 1


async def test_d15_a_bomb_is_refused_and_kept_so_and_others_go_on(rig: Rig):
    placed = {"clusters": [{"name": "t1"}]}
    bomb = spec_of([*copies(17), REMOVED], entry={"name": "t1"})
    rig.create("bomb", placement=placed, **bomb)
    rig.create("good", template=CONFIG_MAP, placement=placed)
    await rig.reconcile("bomb")
    await rig.reconcile("good")
    entry = rig.resource("bomb")["status"]["clusters"][0]
    assert (entry["state"], entry["reason"]) == ("Failed", "RenderFailed")
    assert str(MAX_WORK) in entry["message"]
    assert rig.states("good") == {"t1": "Applied"}
