import time
from typing import Any

from fleetbus_distributor.render.place import Member, matches, place
from fleetbus_distributor.render.spec import Placement
from fleetbus_distributor.selectors import MAX_NAMES, LabelSelector
from support.rows import each_row

FLEET = [
    Member("hub", {"role": "hub"}),
    Member("t1", {"region": "eu", "tier": "prod"}),
    Member("t2", {"region": "us", "tier": "prod"}),
]


def names(placement: dict[str, Any], hub: str = "hub") -> tuple[list[str], list[str]]:
    placed = place(Placement.model_validate(placement), FLEET, hub)
    return [member.name for member in placed.targets], placed.unknown


@each_row(
    ("placement", "targets", "unknown"),
    [
        ({}, ["hub"], []),
        ({"clusters": []}, ["hub"], []),
        ({"clusters": [{"name": "t2"}, {"name": "t1"}]}, ["t1", "t2"], []),
        ({"clusters": [{"name": "t1"}, {"name": "t1"}]}, ["t1"], []),
        ({"clusters": [{"name": "t1"}, {"name": "nope"}]}, ["t1"], ["nope"]),
        ({"clusters": [{"name": "nope"}]}, [], ["nope"]),
        ({"clusterSelector": {"matchLabels": {"tier": "prod"}}}, ["t1", "t2"], []),
        ({"clusterSelector": {}}, ["hub", "t1", "t2"], []),
        ({"clusterSelector": {"matchLabels": {"tier": "none"}}}, [], []),
        (
            {"clusterSelector": {"matchLabels": {"region": "eu"}}, "clusters": [{"name": "hub"}]},
            ["hub", "t1"],
            [],
        ),
        ({"clusterSelector": {}, "exclude": [{"name": "hub"}]}, ["t1", "t2"], []),
        ({"exclude": [{"name": "hub"}]}, [], []),
        ({"clusters": [{"name": "nope"}], "exclude": [{"name": "nope"}]}, [], []),
    ],
)
def test_t18_placement(placement: dict[str, Any], targets: list[str], unknown: list[str]):
    assert names(placement) == (targets, unknown)


def test_a_fleet_without_a_hub_never_redirects_an_empty_placement():
    assert names({}, hub="") == ([], [])


def test_a_hub_that_is_no_member_is_unknown_not_someone_else():
    assert names({}, hub="elsewhere") == ([], ["elsewhere"])


@each_row(
    ("expression", "result"),
    [
        ({"key": "region", "operator": "In", "values": ["eu", "us"]}, True),
        ({"key": "region", "operator": "In", "values": ["us"]}, False),
        ({"key": "nope", "operator": "In", "values": ["us"]}, False),
        ({"key": "region", "operator": "NotIn", "values": ["us"]}, True),
        ({"key": "nope", "operator": "NotIn", "values": ["us"]}, True),
        ({"key": "region", "operator": "NotIn", "values": ["eu"]}, False),
        ({"key": "region", "operator": "Exists"}, True),
        ({"key": "nope", "operator": "Exists"}, False),
        ({"key": "region", "operator": "DoesNotExist"}, False),
        ({"key": "nope", "operator": "DoesNotExist"}, True),
    ],
)
def test_expressions_mean_what_kubernetes_means(expression: dict[str, Any], result: bool):
    selector = LabelSelector.model_validate({"matchExpressions": [expression]})
    assert matches(selector, {"region": "eu"}) is result


def test_all_requirements_must_hold():
    selector = LabelSelector.model_validate(
        {
            "matchLabels": {"tier": "prod"},
            "matchExpressions": [{"key": "region", "operator": "Exists"}],
        }
    )
    assert matches(selector, {"tier": "prod", "region": "eu"})
    assert not matches(selector, {"tier": "prod"})


def test_d15_a_selector_of_as_many_values_as_there_may_be_is_compared_at_once():
    """It is done in the event loop of all rounds: it took six seconds."""
    values = [f"v{at}" for at in range(MAX_NAMES)]
    expressions = [{"key": "zone", "operator": "NotIn", "values": values}] * 100
    placement = Placement.model_validate({"clusterSelector": {"matchExpressions": expressions}})
    members = [Member(f"c{at}", {"zone": "z"}) for at in range(1000)]
    began = time.process_time()
    assert len(place(placement, members, "").targets) == 1000
    assert time.process_time() - began < 1
