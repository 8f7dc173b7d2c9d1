from typing import Any

import pytest

from fleetbus_distributor.errors import SpecError
from fleetbus_distributor.render.spec import (
    ConflictPolicy,
    DeletionPolicy,
    DriftPolicy,
    Spec,
    read_spec,
)
from support.rows import each_row

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}


def read(**spec: Any) -> Spec:
    return read_spec({"spec": {"template": CONFIG_MAP, **spec}})


def test_the_defaults_are_those_of_the_design():
    spec = read()
    assert spec.policy.conflict is ConflictPolicy.ABORT
    assert spec.policy.deletion is DeletionPolicy.DELETE
    assert spec.policy.drift is DriftPolicy.CORRECT
    assert (spec.policy.fuse.objects, spec.policy.fuse.percent) == (20, 30)
    assert [spec.policy.create_namespaces, spec.policy.recreate, spec.policy.suspend] == [False] * 3
    assert spec.placement.clusters == []
    assert spec.placement.cluster_selector is None


@each_row("field", ["placement", "customize", "policy", "vars", "rollout"])
def test_a_field_with_nothing_behind_it_is_an_absent_field(field: str):
    assert read(**{field: None}) == read()


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of template and templates"),
    ({"templates": [CONFIG_MAP], "template": CONFIG_MAP}, "exactly one of template"),
    ({"templates": []}, "spec.templates: "),
    ({"template": "text"}, "spec.template: "),
    ({"template": {}, "placment": {}}, "spec.placment: unknown field"),
    ({"template": {}, "placement": {"clusters": [{}]}}, "spec.placement.clusters[0].name: req"),
    ({"template": {}, "placement": {"clusters": [{"name": "A/b"}]}}, "clusters[0].name: "),
    ({"template": {}, "policy": {"conflict": "Maybe"}}, "spec.policy.conflict: "),
    ({"template": {}, "policy": {"fuse": {"percent": 101}}}, "spec.policy.fuse.percent: "),
    (
        {"template": {}, "customize": {"clusters": [{"action": []}]}},
        "spec.customize.clusters[0]: exactly one of name and clusterSelector",
    ),
    (
        {
            "template": {},
            "customize": {"clusters": [{"name": "a", "action": [{"op": "move", "path": "/a"}]}]},
        },
        "action[0]: op move needs from",
    ),
    (
        {
            "template": {},
            "placement": {
                "clusterSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}
            },
        },
        "matchExpressions[0]: operator In needs values",
    ),
    ({"template": {}, "vars": {"a b": 1}}, "spec.vars: 'a b' is not a variable name"),
    ({"template": {}, "serviceAccountName": "../x"}, "spec.serviceAccountName: "),
    ({"template": {}, "serviceAccountName": ""}, "spec.serviceAccountName: "),
    ({"template": {}, "rollout": {"wave": []}}, "spec.rollout.wave: unknown field"),
    ({"template": {}, "rollout": {"waves": [{"name": "a"}]}}, "waves[0]: exactly one of clusters"),
    (
        {"template": {}, "rollout": {"waves": [{"name": "a", "percent": 0}]}},
        "spec.rollout.waves[0].percent: ",
    ),
    (
        {"template": {}, "rollout": {"waves": [{"name": "a", "percent": 1}] * 2}},
        "spec.rollout: waves: duplicate name a",
    ),
    (
        {"template": {}, "rollout": {"waves": [{"name": "all", "percent": 1}]}},
        "waves[0]: the names all and remaining",
    ),
    ({"template": {}, "rollout": {"maxUnavailable": "0%"}}, "maxUnavailable: neither a number"),
    ({"template": {}, "rollout": {"maxUnavailable": 0}}, "maxUnavailable: neither a number"),
    ({"template": {}, "rollout": {"maxUnavailable": True}}, "maxUnavailable: neither a number"),
    ({"template": {}, "rollout": {"gates": [{"name": "health"}]}}, "the gate health is built in"),
    ({"template": {}, "rollout": {"gates": [{"name": "quiet"}]}}, "quiet needs a period"),
    (
        {"template": {}, "rollout": {"gates": [{"name": "a", "timeout": "soon"}]}},
        "gates[0].timeout: 'soon' is not a duration such as",
    ),
    (
        {"template": {}, "rollout": {"gates": [{"name": "quiet", "period": 300}]}},
        "gates[0].period: not a duration",
    ),
]


@each_row(("spec", "problem"), BAD)
def test_a_bad_spec_is_refused_with_the_name_of_its_field(spec: dict[str, Any], problem: str):
    with pytest.raises(SpecError) as caught:
        read_spec({"spec": spec})
    assert problem in str(caught.value)


def test_d14_a_problem_never_repeats_the_value():
    with pytest.raises(SpecError) as caught:
        read_spec({"spec": {"template": {}, "vars": "hunter2-canary"}})
    assert "canary" not in str(caught.value)


def test_an_explicit_null_value_is_a_value():
    actions = [{"op": "add", "path": "/a", "value": None}, {"op": "remove", "path": "/a"}]
    spec = read(customize={"clusters": [{"name": "a", "action": actions}]})
    assert [action.has_value for action in spec.customize.clusters[0].action] == [True, False]


@each_row(
    ("spec", "problem"),
    [
        ({"placement": {"clusters": [{"name": "A"}] * 1000}}, "spec: 980 more problems"),
        ({"vars": {f"1{at}": 1 for at in range(100)}}, "spec: 80 more problems"),
        (
            {
                "placement": {
                    "clusterSelector": {
                        "matchExpressions": [{"key": "k", "operator": "Exists"}] * 101
                    }
                }
            },
            "at most 100 items",
        ),
    ],
)
def test_d15_many_problems_and_many_expressions_are_refused_in_few_words(
    spec: dict[str, Any], problem: str
):
    with pytest.raises(SpecError) as refused:
        read_spec({"spec": {"template": {}, **spec}})
    assert problem in str(refused.value)
    assert len(refused.value.problems) <= 21
