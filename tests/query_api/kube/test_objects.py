"""Objects of one cluster as a Kubernetes API has them: get, list, pages, versions, forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PODS = "/kube/eu1/api/v1/namespaces/prod/pods"
ALL_PODS = "/kube/eu1/api/v1/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@pytest.fixture
async def pods(api: QueryApi) -> QueryApi:
    """Three pods of eu1, of which one is in another namespace, and one of us1."""
    await api.add_cluster("eu1")
    await api.add_cluster("us1")
    await api.add_cluster("old", reported_ago=100)
    for name, namespace in (("web-1", "prod"), ("web-2", "prod"), ("web-3", "test")):
        labels = {"app": "web", "n": name[-1]}
        parts: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "status": {"phase": f"Phase{name[-1]}"},
        }
        await api.add("eu1", "core/pods", name, namespace=namespace, labels=labels, **parts)
    await api.add("us1", "core/pods", "other")
    return api


def names(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [item["metadata"]["name"] for item in answer.json()["items"]]


async def test_a_list_is_one_of_kubernetes(pods: QueryApi):
    body = (await pods.get(ALL_PODS)).json()
    assert (body["kind"], body["apiVersion"]) == ("PodList", "v1")
    assert [item["metadata"]["name"] for item in body["items"]] == ["web-1", "web-2", "web-3"]
    assert {(item["kind"], item["apiVersion"]) for item in body["items"]} == {("Pod", "v1")}
    assert "continue" not in body["metadata"]
    assert names(await pods.get(PODS)) == ["web-1", "web-2"]
    assert names(await pods.get(ALL_PODS, labelSelector="n in (1,3)")) == ["web-1", "web-3"]
    assert names(await pods.get(ALL_PODS, fieldSelector="status.phase=Phase2")) == ["web-2"]
    assert names(await pods.get(ALL_PODS, fieldSelector="metadata.name=web-3")) == ["web-3"]
    empty = (await pods.get("/kube/eu1/api/v1/namespaces/none/pods")).json()
    assert empty["items"] == []


async def test_field_selectors_mean_what_an_api_server_takes_them_for(api: QueryApi):
    await api.add_cluster("eu1", "core/pods", "core/nodes", "core/events", "batch/jobs")
    parts: list[tuple[str, str, str, dict[str, Any]]] = [
        ("core/nodes", "open", "spec.unschedulable=false", {"spec": {"podCIDR": "10.0.0.0/24"}}),
        ("core/nodes", "closed", "spec.unschedulable=true", {"spec": {"unschedulable": True}}),
        ("core/pods", "plain", "spec.hostNetwork!=true,spec.host!=n1", {"spec": {}}),
        ("core/pods", "placed", "spec.host=n1", {"spec": {"nodeName": "n1"}}),
        ("core/pods", "host", "spec.hostNetwork!=false", {"spec": {"hostNetwork": True}}),
        ("core/events", "one", "source=kubelet", {"source": {"component": "kubelet"}}),
        ("core/events", "other", "source!=kubelet", {"source": {"component": "scheduler"}}),
        ("batch/jobs", "new", "status.successful=0", {"status": {}}),
        ("batch/jobs", "done", "status.successful=1", {"status": {"succeeded": 1}}),
    ]
    for resource, name, _, fields in parts:
        await api.add("eu1", resource, name, **fields)
    for resource, name, selector, _ in parts:
        group, plural = resource.split("/")
        path = "api/v1" if group == "core" else f"apis/{group}/v1"
        answer = await api.get(f"/kube/eu1/{path}/{plural}", fieldSelector=selector)
        assert names(answer) == [name], selector
        listed = await api.get(f"/fleet/v1/resources/{plural}", fieldSelector=selector)
        assert [item["object"]["metadata"]["name"] for item in listed.json()["items"]] == [name]
        table = await api.get(f"/fleet/v1/resources/{plural}", fieldSelector=selector, view="table")
        assert table.text.splitlines()[-1].startswith('{"end":{"rows":1,'), table.text
        counted = await api.get(f"/fleet/v1/counts/{plural}", fieldSelector=selector)
        assert counted.json()["total"] == 1
        answer = await api.get(f"/fleet/v1/outliers/{plural}", fieldSelector=selector)
        assert answer.status_code == 200


async def test_subresources_that_follow_from_the_object_are_answered(api: QueryApi):
    await api.add_cluster("eu1")
    await api.add_cluster("us1")
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}}
    parts: dict[str, Any] = {"spec": spec, "status": {"replicas": 2}}
    for cluster in ("eu1", "us1"):
        await api.add(cluster, "apps/deployments", "web", **parts)
    path = "apis/apps/v1/namespaces/prod/deployments/web"
    deployment = (await api.get(f"/kube/eu1/{path}")).json()

    assert (await api.get(f"/kube/eu1/{path}/status")).json() == deployment
    scale = (await api.get(f"/kube/eu1/{path}/scale")).json()
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["metadata"].items() <= deployment["metadata"].items()
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "app=web"}
    table = (await api.client.get(f"/kube/eu1/{path}/scale", headers={"Accept": TABLE})).json()
    assert [each["name"] for each in table["columnDefinitions"][:3]] == [
        "Name", "Desired", "Available",
    ]  # fmt: skip
    assert table["rows"][0]["cells"][:3] == ["web", 3, 2]
    every = (await api.get(f"/kube/-/{path}/scale")).json()
    clusters = [each["metadata"]["annotations"]["fleetbus.dev/cluster"] for each in every["items"]]
    assert clusters == ["eu1", "us1"]
    missing = await api.get(f"/kube/eu1/{path[:-3]}none/scale")
    assert missing.json()["message"] == 'deployments.apps "none" not found'

    await api.add_body("eu1", "apps/deployments", "large", None, namespace="prod")
    unknown = await api.get(f"/kube/eu1/{path[:-3]}large/scale")
    assert (unknown.status_code, unknown.json()["reason"]) == (503, "ServiceUnavailable")


async def test_a5_versions_are_those_of_the_snapshot(pods: QueryApi):
    listed = (await pods.get(ALL_PODS)).json()
    versions = [int(item["metadata"]["resourceVersion"]) for item in listed["items"]]
    assert versions == sorted(versions)
    assert versions[-1] <= int(listed["metadata"]["resourceVersion"])
    pod = (await pods.get(f"{PODS}/web-2")).json()
    assert pod == listed["items"][1]
    await pods.add("eu1", "core/pods", "web-2", labels={"app": "web"})
    changed = (await pods.get(f"{PODS}/web-2")).json()
    assert int(changed["metadata"]["resourceVersion"]) > int(
        listed["metadata"]["resourceVersion"]
    ), "a watch from the list's version would miss the change"


async def test_a5_only_versions_that_a_cache_of_the_present_has(pods: QueryApi):
    present = (await pods.get(ALL_PODS)).json()["metadata"]["resourceVersion"]
    future = str(int(present) + 10**12)
    for version, match in ((present, ""), ("0", ""), (present, "Exact"), ("1", "NotOlderThan")):
        query = {"resourceVersion": version, "resourceVersionMatch": match}
        answer = await pods.get(ALL_PODS, **{k: v for k, v in query.items() if v})
        assert len(names(answer)) == 3, query
    for path in (ALL_PODS, f"{PODS}/web-1"):
        late = await pods.get(path, resourceVersion=future)
        assert (late.status_code, late.json()["reason"]) == (504, "Timeout")
        assert late.json()["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
        assert late.json()["details"]["retryAfterSeconds"] == 1
    old = await pods.get(ALL_PODS, resourceVersion="1", resourceVersionMatch="Exact")
    assert (old.status_code, old.json()["reason"]) == (410, "Expired")


async def test_pages_stay_right_while_objects_change(pods: QueryApi):
    first = (await pods.get(ALL_PODS, limit=2)).json()
    assert first["metadata"]["remainingItemCount"] == 1
    await pods.add("eu1", "core/pods", "web-0")  # before the position of the token
    token = first["metadata"]["continue"]
    second = (await pods.get(ALL_PODS, limit=2, **{"continue": token})).json()
    assert [item["metadata"]["name"] for item in second["items"]] == ["web-3"]
    assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}, (
        "rule A5"
    )
    selected = (await pods.get(ALL_PODS, limit=1, labelSelector="app=web")).json()
    assert "remainingItemCount" not in selected["metadata"], "as API servers do"


async def test_a_list_without_a_limit_is_whole(pods: QueryApi):
    for number in range(1200):  # more than one page of the snapshot
        await pods.add("us1", "core/configmaps", f"c{number:04}", kind="ConfigMap")
    answer = await pods.get("/kube/us1/api/v1/configmaps")
    assert names(answer) == [f"c{number:04}" for number in range(1200)]
    assert "continue" not in answer.json()["metadata"]
    limited = await pods.get("/kube/us1/api/v1/configmaps", limit=1100)
    assert len(names(limited)) == 1100
    assert limited.json()["metadata"]["remainingItemCount"] == 100
    rows = await pods.client.get("/kube/us1/api/v1/configmaps", headers={"Accept": TABLE})
    assert len(rows.json()["rows"]) == 1200


async def test_a_table_has_the_columns_of_kubectl(pods: QueryApi):
    answer = await pods.client.get(PODS, headers={"Accept": TABLE})
    table = answer.json()
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    columns = [column["name"] for column in table["columnDefinitions"]]
    assert columns[:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
    assert [row["cells"][:3] for row in table["rows"]] == [
        ["web-1", "0/0", "Phase1"],
        ["web-2", "0/0", "Phase2"],
    ]
    row = table["rows"][0]["object"]
    assert (row["kind"], row["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert row["metadata"]["labels"] == {"app": "web", "n": "1"}
    headers = {"Accept": TABLE}
    one = await pods.client.get(f"{PODS}/web-1?includeObject=None", headers=headers)
    assert [list(row) for row in one.json()["rows"]] == [["cells"]]
    full = await pods.client.get(f"{PODS}/web-1?includeObject=Object", headers=headers)
    assert full.json()["rows"][0]["object"] == (await pods.get(f"{PODS}/web-1")).json()


async def test_metadata_alone(pods: QueryApi):
    answer = await pods.client.get(PODS, headers={"Accept": METADATA})
    body = answer.json()
    assert body["kind"] == "PartialObjectMetadataList"
    assert [sorted(item) for item in body["items"]] == [["apiVersion", "kind", "metadata"]] * 2
    single = METADATA.replace("List", "")
    one = await pods.client.get(f"{PODS}/web-1", headers={"Accept": single})
    assert one.json()["kind"] == "PartialObjectMetadata"
    assert one.json()["metadata"]["name"] == "web-1"


async def test_objects_that_name_no_kind_get_theirs(pods: QueryApi):
    obj = (await pods.get("/kube/us1/api/v1/namespaces/prod/pods/other")).json()
    assert (obj["kind"], obj["apiVersion"]) == ("Pod", "v1")
    await pods.add("us1", "apps/deployments", "web")
    path = "/kube/us1/apis/apps/v1/namespaces/prod/deployments"
    assert (await pods.get(f"{path}/web")).json()["apiVersion"] == "apps/v1"
    assert (await pods.get(path)).json()["kind"] == "DeploymentList"


async def test_only_the_version_of_the_object_itself_is_exchanged(pods: QueryApi):
    copy = {"kind": "Pod", "resourceVersion": "777", "name": "web-1"}
    tree: dict[str, Any] = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "c", "namespace": "prod", "resourceVersion": "777"},
        "data": {"text": '"resourceVersion":"777"'},
        "targetRef": copy,
    }
    pods.version = 776
    body = msgspec.json.encode(tree)
    await pods.add_body("eu1", "core/configmaps", "c", body, namespace="prod")
    obj = (await pods.get("/kube/eu1/api/v1/namespaces/prod/configmaps/c")).json()
    assert obj["metadata"]["resourceVersion"] not in {"777", ""}
    assert (obj["targetRef"], obj["data"]) == (copy, tree["data"])


async def test_a4_an_object_without_a_body_is_marked_and_an_old_answer_warns(pods: QueryApi):
    await pods.add_body("eu1", "core/pods", "huge", None, degraded="oversized")
    obj = (await pods.get(f"{PODS}/huge")).json()
    assert obj["metadata"]["annotations"] == {"fleetbus.dev/degraded": "oversized"}
    assert obj["kind"] == "Pod"
    table = (await pods.client.get(PODS, headers={"Accept": TABLE})).json()
    assert "huge" in [row["cells"][0] for row in table["rows"]]
    unmatched = await pods.get(ALL_PODS, fieldSelector="status.phase=Phase1")
    assert "1 objects without a body left out" in unmatched.headers["warning"]
    assert "warning" not in (await pods.get(PODS)).headers

    await pods.add("old", "core/pods", "web")
    for path in ("/kube/old/api/v1/pods", "/kube/old/api/v1/namespaces/prod/pods/none"):
        answer = await pods.get(path)
        assert answer.headers["warning"].startswith('299 - "cluster old may be incomplete'), path
        assert answer.headers["fleetbus-incomplete"].startswith('"old";age=1'), path


async def test_a8_an_object_of_any_depth_breaks_no_list(pods: QueryApi, subtests: pytest.Subtests):
    for body_part in [
        *(
            '"spec":' + '{"a":' * depth + "1" + "}" * depth
            for depth in (500, 900, *range(930, 1001, 5))
        ),
        *(f'"spec":{{}},"status":{odd}' for odd in ("[]", "1e999", '{"phase":[]}')),
    ]:
        with subtests.test(part=body_part):
            body = f'{{"metadata":{{"name":"odd","namespace":"prod"}},{body_part}}}'.encode()
            await pods.add_body("eu1", "core/pods", "odd", body, namespace="prod")
            for path in (ALL_PODS, "/kube/-/api/v1/pods", f"{PODS}/odd", "/fleet/v1/outliers/pods"):
                for accept in ("application/json", TABLE):
                    answer = await pods.client.get(path, headers={"Accept": accept})
                    assert answer.status_code == 200, answer.text


async def test_annotations_that_are_none_break_no_list(pods: QueryApi, subtests: pytest.Subtests):
    for value in ["null", "[]", '"x"', "7", '{"a":7}']:
        with subtests.test(annotations=value):
            body = f'{{"metadata":{{"name":"odd","annotations":{value}}}}}'.encode()
            await pods.add_body("eu1", "core/pods", "odd", body, namespace="prod")
            answer = await pods.get("/kube/-/api/v1/pods")
            assert answer.status_code == 200, answer.text
            (odd,) = (item for item in answer.json()["items"] if item["metadata"]["name"] == "odd")
            assert odd["metadata"]["annotations"]["fleetbus.dev/cluster"] == "eu1"


async def test_a4_a_list_that_cannot_be_read_to_its_end_is_cut_off(pods: QueryApi):
    """More than the connection holds, so that most is not read yet when the store is emptied."""
    text = "x" * 64_000
    for number in range(600):
        body = b'{"metadata":{"name":"c%d"},"data":{"a":"%b"}}' % (number, text.encode())
        await pods.add_body("us1", "core/configmaps", f"c{number}", body)

    async def read() -> None:
        async with pods.client.stream("GET", "/kube/us1/api/v1/configmaps") as answer:
            assert answer.status_code == 200
            parts = answer.aiter_raw()
            await anext(parts)
            await pods.snapshot.redis.flushall()
            async for _ in parts:
                pass

    with capture_logs() as logs, pytest.raises(httpx.RemoteProtocolError):
        await read()
    assert "list_interrupted" in {line["event"] for line in logs}
