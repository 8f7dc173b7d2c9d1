"""Objects of the same name that differ between clusters."""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus_query_api.fields.outliers import Outlier
from fleetbus_query_api.fields.variants import MAX_VALUES, encode_form, read_variant
from fleetbus_query_api.responses.openapi import OutlierListModel
from support.rows import each_row

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PATH = "/fleet/v1/outliers/deployments"


async def fill(api: QueryApi, **replicas: int) -> None:
    for cluster, number in replicas.items():
        await api.add_cluster(cluster)
        for name in ("web", "same"):
            await api.add(
                cluster,
                "apps/deployments",
                name,
                spec={"replicas": number if name == "web" else 1, "paused": None},
                status={"replicas": number},
            )
        await api.add(cluster, "apps/deployments", f"only-{cluster}")


async def ask(api: QueryApi, **query: Any) -> dict[str, Any]:
    answer = await api.get(PATH, **query)
    assert answer.status_code == 200, answer.text
    OutlierListModel.model_validate(answer.json())
    return answer.json()


@pytest.mark.parametrize("repaid", [0, math.inf])
async def test_outliers_are_names_with_different_specs(
    api: QueryApi, monkeypatch: pytest.MonkeyPatch, repaid: float
):
    monkeypatch.setattr("fleetbus_query_api.fields.source.REPAID", repaid)
    await fill(api, c1=1, c2=1, c3=5)

    (item,) = (await ask(api))["items"]
    assert (item["namespace"], item["name"]) == ("prod", "web")
    assert [variant["clusters"] for variant in item["variants"]] == [["c1", "c2"], ["c3"]]
    (difference,) = item["differences"]
    assert difference["path"] == "spec.replicas"
    usual, other = (variant["digest"] for variant in item["variants"])
    assert difference["values"] == {usual: 1, other: 5}

    assert (await ask(api, cluster="c1,c2"))["items"] == []
    assert (await ask(api, namespace="dev"))["items"] == []
    assert (await ask(api, name="same"))["items"] == []
    await api.add("c3", "apps/deployments", "web", spec={"replicas": 1})
    assert (await ask(api))["items"] == [], "an answer is as new as its question"


async def test_pages_of_outliers(api: QueryApi):
    for cluster, value in (("c1", 1), ("c2", 2)):
        await api.add_cluster(cluster)
        for number in range(5):
            await api.add(cluster, "apps/deployments", f"d{number}", spec={"replicas": value})
    names, token = list[str](), ""
    for remaining in (3, 1, 0):
        page = await ask(api, limit=2, **{"continue": token})
        names += [item["name"] for item in page["items"]]
        token = page["continue"]
        assert page["remaining"] == remaining
    assert (names, token) == ([f"d{number}" for number in range(5)], "")
    page = await ask(api, limit=2)
    answer = await api.get(PATH, namespace="prod", **{"continue": page["continue"]})
    assert answer.status_code == 400


async def test_a4_a_cluster_with_an_unreadable_object_is_incomplete(api: QueryApi):
    await fill(api, c1=1, c2=2)
    await api.add_body("c2", "apps/deployments", "same", None)
    answer = await ask(api)
    assert answer["incomplete"] == ["c2"]
    assert [item["name"] for item in answer["items"]] == ["web"]


@each_row(
    ("left", "right", "expected"),
    [
        ({"a": {"b": 1}}, {"a": 2}, {"spec.a": ['{"b":1}', 2]}),
        ({"a": [1]}, {"a": [1, {"b": [2]}]}, {"spec.a[1]": [None, '{"b":[2]}']}),
        ({"a": [1, 2]}, {"a": [1, 3]}, {"spec.a[1]": [2, 3]}),
        ({"a": ["x" * 300]}, {"a": 1}, {"spec.a": ['["' + "x" * 198, 1]}),
    ],
)
async def test_maps_and_lists_are_shown_by_their_values(
    api: QueryApi, left: Any, right: Any, expected: dict[str, list[Any]]
):
    for cluster, spec in (("c1", left), ("c2", right)):
        await api.add_cluster(cluster)
        await api.add(cluster, "apps/deployments", "web", spec=spec)
    (item,) = (await ask(api))["items"]
    digests = {variant["clusters"][0]: variant["digest"] for variant in item["variants"]}
    values = {
        difference["path"]: [difference["values"][digests[cluster]] for cluster in ("c1", "c2")]
        for difference in item["differences"]
    }
    assert values == expected


async def test_the_owner_is_that_which_every_object_names(api: QueryApi):
    owner = {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "MultiClusterResource",
        "namespace": "shop",
        "name": "web",
        "uid": "u1",
        "clusterName": "hub",
    }
    for cluster, replicas in (("c1", 1), ("c2", 2)):
        await api.add_cluster(cluster)
        marks = {
            "web": json.dumps({**owner, "target": cluster, "version": 2}),
            "two": json.dumps({**owner, "uid": cluster}),
            "bad": "<script>",
        }
        for name, mark in marks.items():
            tree = {"metadata": {"name": name, "annotations": {"fleetbus.dev/owner": mark}}}
            body = json.dumps({**tree, "spec": {"replicas": replicas}}).encode()
            await api.add_body(cluster, "apps/deployments", name, body)
    owners = {item["name"]: item["owner"] for item in (await ask(api))["items"]}
    named = {"cluster": "hub", "namespace": "shop", "name": "web", "uid": "u1"}
    assert owners == {"web": {"kind": "MultiClusterResource", **named}, "two": None, "bad": None}


POD: dict[str, Any] = {
    "metadata": {"name": "a", "labels": {"app": "web"}, "annotations": {"note": "x"}},
    "spec": {"containers": [{"name": "c", "image": "i:1", "env": [{"name": "E", "value": ""}]}]},
}
FILLED_IN: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "status": {"phase": "Running"},
    "metadata": {
        **POD["metadata"],
        "uid": "u",
        "ownerReferences": [{"uid": "o"}],
        "labels": {"app": "web", "pod-template-hash": "abc"},
        "annotations": {"note": "x", "deployment.kubernetes.io/revision": "3"},
    },
    "spec": {
        "nodeName": "n1",
        "serviceAccount": "default",
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "tolerationSeconds": 300}],
        "volumes": [{"name": "kube-api-access-x2z", "projected": {}}],
        "hostAliases": None,
        "containers": [
            {
                **POD["spec"]["containers"][0],
                "resources": {},
                "volumeMounts": [{"name": "kube-api-access-x2z", "mountPath": "/var"}],
            }
        ],
    },
}


def digest_of(tree: dict[str, Any], resource: str = "core/pods") -> str:
    return read_variant(resource, json.dumps(tree).encode())


def test_what_a_cluster_fills_in_makes_no_difference():
    assert digest_of(FILLED_IN) == digest_of(POD)


@each_row(
    ("place", "value"),
    [
        ("metadata.labels.app", "db"),
        ("metadata.annotations.note", "y"),
        ("spec.hostNetwork", True),
        ("spec.nodeSelector", {"a": "b"}),
        ("data", {"a": "b"}),
    ],
)
def test_what_somebody_asked_for_makes_a_difference(place: str, value: Any):
    changed = copy.deepcopy(FILLED_IN)
    here = changed
    *parents, last = place.split(".")
    for name in parents:
        here = here[name]
    here[last] = value
    assert digest_of(changed) != digest_of(POD)


@each_row(
    ("resource", "field", "value"),
    [
        ("core/services", "clusterIP", "10.0.0.1"),
        ("core/persistentvolumeclaims", "volumeName", "pv-1"),
        ("batch/jobs", "selector", {"matchLabels": {"controller-uid": "u"}}),
        ("core/namespaces", "finalizers", ["kubernetes"]),
    ],
)
def test_an_assigned_field_counts_only_where_nobody_assigns_it(
    resource: str, field: str, value: Any
):
    assert digest_of({"spec": {field: value}}, resource) == digest_of({}, resource)
    assert digest_of({"spec": {field: value}}, "core/widgets") != digest_of({}, "core/widgets")


def test_a_headless_service_is_another_one():
    headless = {"spec": {"clusterIP": "None"}}
    assert digest_of(headless, "core/services") != digest_of({}, "core/services")


@each_row("tree", [{}, {"spec": []}, {"spec": {"containers": 1}}, {"metadata": 0}])
def test_an_odd_object_breaks_nothing(tree: dict[str, Any]):
    for resource in ("core/pods", "core/services", "batch/jobs"):
        assert len(digest_of(tree, resource)) == 16


async def test_a4_an_object_too_deep_to_compare_is_left_out_and_said(api: QueryApi):
    await fill(api, c1=1, c2=5)
    for cluster in ("c1", "c2"):
        deep = '{"metadata":{"name":"deep"},"spec":' + "[" * 450 + "1" + "]" * 450 + "}"
        await api.add_body(cluster, "apps/deployments", "deep", deep.encode())
    answer = await ask(api)
    assert [item["name"] for item in answer["items"]] == ["web"]
    assert answer["incomplete"] == ["c1", "c2"]


async def test_a4_an_object_too_wide_to_compare_is_left_out_and_said(api: QueryApi):
    """Its variant took 0.3 s that nothing interrupted, and its differences twice as long."""
    await fill(api, c1=1, c2=5)
    wide: list[Any] = [[]] * (MAX_VALUES + 1)
    for cluster, values in (("c1", wide), ("c2", wide[:5])):
        await api.add(cluster, "apps/deployments", "wide", spec={"values": values})
    answer = await ask(api)
    assert [item["name"] for item in answer["items"]] == ["web"]
    assert answer["incomplete"] == ["c1"]


@each_row(("levels", "values"), [(150, 40_000), (20, 40_000), (1, 49_000)])
def test_a8_differences_below_many_levels_take_bounded_work(levels: int, values: int):
    outlier = Outlier(b"x")
    for digest, end in (("a", 1), ("b", 2), ("c", 3)):
        tree: Any = [*[[]] * values, end]
        for _ in range(levels):
            tree = {"a": tree}
        outlier.forms[digest] = encode_form(tree)
    (difference,) = outlier.differences()
    assert sorted(difference["values"]) == ["a", "b", "c"]
    assert difference["path"].count("a") <= max(2, 1_500_000 // (3 * values))


async def test_a8_the_forms_of_a_page_take_bounded_memory(
    api: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    """A hundred names in five large variants were held decoded: gigabytes."""
    monkeypatch.setattr("fleetbus_query_api.fields.outliers.PAGE_BYTES", 90_000)
    for cluster in ("c1", "c2", "c3"):
        await api.add_cluster(cluster)
        for name in ("a", "b"):
            await api.add(
                cluster, "apps/deployments", name, spec={"text": "x" * 20_000, "in": cluster}
            )
    page = await ask(api)
    assert [len(item["variants"]) for item in page["items"]] == [3, 3]
    shown = [
        len(difference["values"]) for item in page["items"] for difference in item["differences"]
    ]
    assert shown == [2, 2]
    assert page["incomplete"] == ["c3"]
    assert "2 objects too large" in page["freshness"]["c3"]["reason"]

    single = await ask(api, limit=1)
    assert (single["incomplete"], single["remaining"]) == ([], 1)
    assert len(single["items"][0]["differences"][0]["values"]) == 3


def test_a8_paths_of_differences_are_short():
    """Fifty of them repeated a name of a megabyte, and each level held one more."""
    outlier = Outlier(b"x")
    for digest, number in (("a", 1), ("b", 2)):
        tree: Any = {f"f{each}": number for each in range(50)}
        for level in range(100):
            tree = {f"{level}" + "n" * 10_000: tree}
        outlier.forms[digest] = encode_form(tree)
    paths = [difference["path"] for difference in outlier.differences()]
    assert len(paths) == 50
    assert max(map(len, paths)) <= 1_000
    assert all(path.endswith("…") for path in paths)
