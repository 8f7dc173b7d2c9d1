"""Complete objects straight into the store."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.support.kube_calls import Calls, changes
from fleetbus_emulator.apiserver import ApiError, Cluster

JsonObject = dict[str, Any]


def _config(name: str, **meta: str) -> tuple[str, JsonObject]:
    return "v1/configmaps", {"metadata": {"name": name, "namespace": "default", **meta}}


def test_what_is_restored_keeps_all_but_its_revision():
    cluster = Cluster("alpha")
    meta = {"uid": "u", "creationTimestamp": "2020-01-01T00:00:00Z", "resourceVersion": "5"}
    before = cluster.resource_version
    assert cluster.restore([_config("a", **meta), _config("b")]) == 2
    live = cluster.get("v1/configmaps", "default", "a")
    assert live is not None
    assert live["metadata"] | {"resourceVersion": "5"} == {
        "name": "a",
        "namespace": "default",
        **meta,
    }
    assert [c.rv for c in cluster.history][-2:] == [before + 1, before + 2]
    assert cluster.history[-1].uid


def test_watches_and_subscribers_see_what_is_restored():
    cluster = Cluster("alpha")
    calls, received = Calls(cluster), list[str]()
    watch = calls.watch("/api/v1/configmaps")
    cluster.subscribe(lambda change: received.append(change.new["metadata"]["name"]))
    cluster.restore([_config("b"), _config("a")])
    assert changes(watch) == ["ADDED:b", "ADDED:a"]
    assert received == ["b", "a"]


def test_a_page_is_a_snapshot_while_many_objects_are_restored():
    cluster = Cluster("alpha")
    calls = Calls(cluster)
    cluster.restore(_config(f"m{n}") for n in range(3))
    page = calls.get("/api/v1/configmaps", limit="2")
    cluster.restore(_config(f"{letter}{n:03}") for letter in "az" for n in range(150))
    following = calls.get("/api/v1/configmaps", limit="2", continue_=page.meta["continue"])
    assert page.names + following.names == ["m0", "m1", "m2"]
    names = calls.get("/api/v1/configmaps").names
    assert names == sorted(names)
    assert len(names) == 303


@pytest.mark.parametrize(
    ("obj", "code"),
    [
        ({"metadata": {"name": "a", "namespace": "default"}}, 409),
        ({"metadata": {"name": "b", "namespace": "nowhere"}}, 404),
        ({"metadata": {"name": "b"}}, 422),
        ({"metadata": {"namespace": "default"}}, 422),
    ],
)
def test_what_cannot_be_there_is_not_restored(obj: JsonObject, code: int):
    cluster = Cluster("alpha")
    cluster.restore([_config("a")])
    before = cluster.resource_version
    with pytest.raises(ApiError) as caught:
        cluster.restore([("v1/configmaps", obj)])
    assert caught.value.code == code
    assert cluster.resource_version == before
