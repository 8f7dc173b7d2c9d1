import contextlib
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbus_distributor.errors import RenderError
from fleetbus_distributor.render.spec import read_spec
from fleetbus_distributor.render.template import Context, render, substitute
from support.full import examples
from support.rows import each_row

CONTEXT = Context(
    "eu1",
    {"region": "north", "topology.kubernetes.io/zone": "z1"},
    {"n": 3, "on": True, "text": "hi", "map": {"a": [1]}, "none": None, "half": 0.5},
)


@each_row(
    ("template", "result"),
    [
        ("plain", "plain"),
        ("${cluster.name}", "eu1"),
        ("a-${cluster.name}-${cluster.labels.region}", "a-eu1-north"),
        ("${cluster.labels.topology.kubernetes.io/zone}", "z1"),
        ("${vars.n}", 3),
        ("n=${vars.n} on=${vars.on} half=${vars.half}", "n=3 on=true half=0.5"),
        ("${vars.on}", True),
        ("${vars.map}", {"a": [1]}),
        ("${vars.none}", None),
        ("${HOME} $(x) ${}", "${HOME} $(x) ${}"),
        ("$${cluster.name}", "${cluster.name}"),
        ("$${vars.n} is ${vars.n}", "${vars.n} is 3"),
        ({"${cluster.name}": ["${vars.n}", 7, None, False]}, {"eu1": [3, 7, None, False]}),
    ],
)
def test_d15_substitution_is_typed(template: Any, result: Any):
    assert substitute(template, CONTEXT, "spec.template") == result


@each_row(
    ("template", "problem"),
    [
        ({"a": ["${vars.nope}"]}, "spec.template.a[0]: spec.vars has no 'nope'"),
        ({"a": "${cluster.labels.regio}"}, "has no label 'regio' (did you mean 'region'?)"),
        ("${cluster.labels.nope}", "cluster eu1 has no label 'nope'"),
        (
            "${cluster.nam}",
            "unknown expression ${cluster.nam} (did you mean 'cluster.name'?); allowed are clus",
        ),
        ("${cluster.name.__class__}", "unknown expression"),
        ("${vars.text.__class__}", "has no 'text.__class__'"),
        ("x${vars.map}", "is not a scalar"),
        ({"${vars.n}": 1}, "must become a string"),
    ],
)
def test_d15_what_names_nothing_is_an_error_with_its_field(template: Any, problem: str):
    with pytest.raises(RenderError) as caught:
        substitute(template, CONTEXT, "spec.template")
    assert problem in str(caught.value)


def test_d15_what_was_substituted_is_not_read_again():
    context = Context("eu1", {}, {"a": "${vars.b}", "b": "secret"})
    assert substitute("${vars.a} ${vars.a}", context, "t") == "${vars.b} ${vars.b}"


def test_d15_a_small_template_cannot_write_a_large_object_or_take_long():
    spec = read_spec(
        {"spec": {"template": {"a": ["${vars.big}"] * 200}, "vars": {"big": "x" * 500_000}}}
    )
    started = time.perf_counter()
    with pytest.raises(RenderError, match="larger than"):
        render(spec, Context("eu1", {}, spec.vars))
    assert time.perf_counter() - started < 0.1


def test_d15_a_deep_template_is_refused():
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    with pytest.raises(RenderError, match="nested deeper"):
        substitute(deep, CONTEXT, "t")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TEXT = st.text(alphabet="${}.abclustervarsname_ \n", max_size=30)


@given(value=JSON)
@settings(max_examples=examples(60))
def test_d15_a_variable_comes_out_as_it_went_in(value: Any):
    assert substitute("${vars.v}", Context("c", {}, {"v": value}), "t") == value


@given(text=TEXT)
@settings(max_examples=examples(200))
def test_d15_any_text_renders_or_is_refused(text: str):
    with contextlib.suppress(RenderError):
        assert isinstance(substitute(text, CONTEXT, "t"), str | int | None)


def test_two_uses_of_a_variable_share_no_tree():
    result = substitute(["${vars.map}", "${vars.map}"], CONTEXT, "t")
    result[0]["a"].append(2)
    assert result[1] == {"a": [1]}
    assert CONTEXT.variables["map"] == {"a": [1]}
