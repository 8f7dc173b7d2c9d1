"""Create, update, patch, delete, as real API servers do them."""

import pytest

from emulator.support.kube_calls import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JSON_PATCH,
    PODS,
    STRATEGIC,
    Calls,
    config_map,
    deployment,
)
from fleetbus_emulator.apiserver import ApiError, Change, Cluster

ONE = f"{CONFIGMAPS}/a"


@pytest.fixture
def calls() -> Calls:
    return Calls(Cluster("alpha", seed=1))


def pod(name: str, **spec: object) -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def test_a_created_object_has_uid_time_and_version(calls: Calls):
    reply = calls.post(CONFIGMAPS, config_map("a", {"uid": "mine", "generation": 9}, k="v"))
    assert reply.status == 201
    assert reply.document["kind"] == "ConfigMap"
    assert reply.meta["uid"] != "mine"
    assert "generation" not in reply.meta
    assert {"creationTimestamp", "resourceVersion", "namespace"} <= reply.meta.keys()


def test_versions_come_from_one_counter_that_starts_high(calls: Calls):
    first = int(calls.post(CONFIGMAPS, config_map("a")).rv)
    second = int(calls.post(DEPLOYMENTS, deployment("d")).rv)
    assert second == first + 1
    assert first > 10**12


def test_creating_twice_is_already_exists(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a"))
    reply = calls.post(CONFIGMAPS, config_map("a"))
    assert (reply.status, reply.document["reason"]) == (409, "AlreadyExists")
    assert reply.message == 'configmaps "a" already exists'


def test_a_version_on_create_is_refused_with_500(calls: Calls):
    reply = calls.post(CONFIGMAPS, config_map("a", {"resourceVersion": "5"}))
    assert reply.status == 500
    assert reply.message == "resourceVersion should not be set on objects to be created"


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        ({"name": "Bad_Name"}, 422),
        ({"name": ""}, 422),
        ({"name": "a", "labels": {"k": "not valid!"}}, 422),
        ({"name": "a", "ownerReferences": [{"kind": "Pod", "name": "p", "apiVersion": "v1"}]}, 422),
        ({"name": "a", "namespace": "other"}, 400),
    ],
)
def test_bad_metadata_is_refused(calls: Calls, metadata: dict[str, object], status: int):
    assert calls.post(CONFIGMAPS, {"metadata": metadata}).status == status


def test_generated_names_are_a_prefix_and_five_safe_characters(calls: Calls):
    name = calls.post(CONFIGMAPS, {"metadata": {"generateName": "job-"}}).meta["name"]
    assert name.startswith("job-")
    assert len(name) == len("job-") + 5
    assert set(name[4:]) <= set("bcdfghjklmnpqrstvwxz2456789")


def test_a_create_in_a_missing_namespace_is_404(calls: Calls):
    reply = calls.post("/api/v1/namespaces/none/configmaps", config_map("a"))
    assert (reply.status, reply.message) == (404, 'namespaces "none" not found')


def test_a_create_in_a_terminating_namespace_is_403(calls: Calls):
    calls.post("/api/v1/namespaces", {"metadata": {"name": "going"}})
    assert calls.delete("/api/v1/namespaces/going").document["status"]["phase"] == "Terminating"
    reply = calls.post("/api/v1/namespaces/going/configmaps", config_map("a"))
    assert reply.status == 403
    assert reply.document["details"]["causes"][0]["reason"] == "NamespaceTerminating"


def test_a_namespace_goes_once_it_is_finalized(calls: Calls):
    calls.post("/api/v1/namespaces", {"metadata": {"name": "going"}})
    going = calls.delete("/api/v1/namespaces/going").document
    going["spec"]["finalizers"] = []
    assert calls.put("/api/v1/namespaces/going/finalize", going).status == 200
    assert calls.get("/api/v1/namespaces/going").status == 404


def test_the_conditions_of_an_endpoint_are_an_object(calls: Calls):
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    endpoint = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    body = {"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [endpoint]}
    assert calls.post(path, body).document["endpoints"] == [endpoint]


def test_a_put_with_an_old_version_conflicts(calls: Calls):
    old = calls.post(CONFIGMAPS, config_map("a", k="1")).document
    calls.merge(ONE, {"data": {"k": "2"}})
    reply = calls.put(ONE, {**old, "data": {"k": "3"}})
    assert (reply.status, reply.document["reason"]) == (409, "Conflict")
    assert reply.document["details"] == {"name": "a", "kind": "configmaps"}


def test_a_patch_without_version_never_conflicts_but_one_with_an_old_version_does(calls: Calls):
    old = calls.post(CONFIGMAPS, config_map("a")).rv
    assert calls.merge(ONE, {"data": {"k": "1"}}).status == 200
    assert (
        calls.merge(ONE, {"metadata": {"resourceVersion": old}, "data": {"k": "2"}}).status == 409
    )


def test_writes_that_change_nothing_move_no_version_and_make_no_event(calls: Calls):
    created = calls.post(CONFIGMAPS, config_map("a", k="1"))
    before = len(calls.cluster.history)
    assert calls.put(ONE, created.document).rv == created.rv
    assert calls.merge(ONE, {}).rv == created.rv
    assert calls.merge(ONE, {"data": {"k": "1"}}).rv == created.rv
    assert len(calls.cluster.history) == before


def test_a_lease_is_created_by_put_and_a_config_map_is_not(calls: Calls):
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = {"metadata": {"name": "l"}, "spec": {"renewTime": "2024-01-01T00:00:00.000001Z"}}
    reply = calls.put(f"{leases}/l", lease)
    assert reply.status == 201
    assert reply.document["spec"]["renewTime"] == "2024-01-01T00:00:00.000001Z"
    assert calls.put(ONE, config_map("a")).status == 404


def test_json_patches_apply_and_fail_as_a_whole(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a", k="1"))
    operations = [{"op": "replace", "path": "/data/k", "value": "2"}]
    assert calls.call("PATCH", ONE, operations, content=JSON_PATCH).document["data"]["k"] == "2"
    failing = [*operations, {"op": "test", "path": "/data/k", "value": "9"}]
    assert calls.call("PATCH", ONE, failing, content=JSON_PATCH).status == 422
    assert calls.call("PATCH", ONE, {"op": "x"}, content=JSON_PATCH).status == 400
    assert calls.call("PATCH", ONE, {}, content="application/json").status == 415


def test_strategic_merges_keep_keyed_items_and_put_new_ones_first(calls: Calls):
    calls.post(DEPLOYMENTS, deployment("d"))

    def patched(*items: dict[str, object]) -> list[str]:
        patch = {"spec": {"template": {"spec": {"containers": items}}}}
        reply = calls.call("PATCH", f"{DEPLOYMENTS}/d", patch, content=STRATEGIC)
        return [c["name"] for c in reply.document["spec"]["template"]["spec"]["containers"]]

    assert patched({"name": "side", "image": "b"}) == ["side", "c"]
    assert patched({"name": "side", "$patch": "delete"}) == ["c"]


def test_dry_runs_store_nothing(calls: Calls):
    reply = calls.post(CONFIGMAPS, config_map("a"), dryRun="All")
    assert reply.status == 201
    assert reply.meta["uid"]
    assert "resourceVersion" not in reply.meta
    assert calls.get(ONE).status == 404
    assert calls.post(CONFIGMAPS, config_map("a"), dryRun="Some").status == 422


def test_status_and_spec_are_written_through_their_own_endpoints(calls: Calls):
    calls.post(DEPLOYMENTS, {**deployment("d", replicas=2), "status": {"replicas": 9}})
    path = f"{DEPLOYMENTS}/d"
    assert calls.get(path).document["status"] == {}
    calls.merge(path, {"status": {"replicas": 7}})
    assert calls.get(path).document["status"] == {}
    sub = calls.merge(f"{path}/status", {"spec": {"replicas": 5}, "status": {"replicas": 1}})
    assert sub.document["status"] == {"replicas": 1}
    assert sub.document["spec"]["replicas"] == 2
    assert sub.meta["generation"] == 1


def test_generation_follows_the_spec_and_a_deployments_annotations(calls: Calls):
    calls.post(DEPLOYMENTS, deployment("d"))
    path = f"{DEPLOYMENTS}/d"
    assert calls.merge(path, {"metadata": {"labels": {"x": "y"}}}).meta["generation"] == 1
    assert calls.merge(path, {"metadata": {"annotations": {"x": "y"}}}).meta["generation"] == 2
    assert calls.merge(path, {"spec": {"replicas": 4}}).meta["generation"] == 3


def test_scaling_goes_through_the_scale_subresource(calls: Calls):
    calls.post(DEPLOYMENTS, deployment("d", replicas=2))
    scale = calls.get(f"{DEPLOYMENTS}/d/scale").document
    assert scale["kind"] == "Scale"
    assert scale["status"] == {"replicas": 0, "selector": "app=d"}
    assert calls.merge(f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 5}}).status == 200
    assert calls.get(f"{DEPLOYMENTS}/d").document["spec"]["replicas"] == 5
    assert calls.put(f"{DEPLOYMENTS}/d/scale", scale).status == 409


def test_a_deployment_whose_selector_misses_its_template_is_refused(calls: Calls):
    assert (
        calls.post(DEPLOYMENTS, deployment("d", selector={"matchLabels": {"z": "z"}})).status == 422
    )


def test_secrets_encode_string_data_and_refuse_bad_base64(calls: Calls):
    secrets = "/api/v1/namespaces/default/secrets"
    reply = calls.post(secrets, {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert reply.document["data"] == {"a": "Yg=="}
    assert "stringData" not in reply.document
    assert calls.post(secrets, {"metadata": {"name": "t"}, "data": {"a": "no!"}}).status == 400


def test_a_deleted_object_answers_a_status_that_names_the_plural(calls: Calls):
    uid = calls.post(CONFIGMAPS, config_map("a")).meta["uid"]
    reply = calls.delete(ONE)
    assert reply.document["status"] == "Success"
    assert reply.document["details"] == {"name": "a", "kind": "configmaps", "uid": uid}
    assert calls.delete(ONE).status == 404


def test_finalizers_hold_an_object_until_the_last_is_removed(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a", {"finalizers": ["x.io/f"]}))
    first = calls.delete(ONE)
    assert first.meta["deletionGracePeriodSeconds"] == 0
    assert calls.delete(ONE).rv == first.rv
    assert calls.merge(ONE, {"metadata": {"finalizers": ["x.io/f", "x.io/g"]}}).status == 422
    again = calls.post(CONFIGMAPS, config_map("a"))
    assert again.message.startswith("object is being deleted: ")
    assert calls.merge(ONE, {"metadata": {"finalizers": None}}).status == 200
    assert calls.get(ONE).status == 404


def test_delete_preconditions_are_checked(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a"))
    assert calls.delete(ONE, {"preconditions": {"uid": "nope"}}).status == 409
    assert calls.delete(ONE, {"preconditions": {"resourceVersion": "1"}}).status == 409
    assert calls.delete(ONE, propagationPolicy="Nope").status == 422


def test_propagation_becomes_a_finalizer_and_jobs_orphan_by_default(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a"))
    reply = calls.delete(ONE, propagationPolicy="Foreground")
    assert reply.meta["finalizers"] == ["foregroundDeletion"]
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    pod_spec = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    job = calls.post(jobs, {"metadata": {"name": "j"}, "spec": {"template": {"spec": pod_spec}}})
    labels = job.document["spec"]["template"]["metadata"]["labels"]
    assert labels["controller-uid"] == job.meta["uid"]
    assert calls.delete(f"{jobs}/j").meta["finalizers"] == ["orphan"]


def test_a_pod_on_a_node_has_a_grace_period_and_one_without_goes_at_once(calls: Calls):
    calls.post(PODS, pod("free"))
    assert calls.delete(f"{PODS}/free").document["kind"] == "Pod"
    assert calls.get(f"{PODS}/free").status == 404
    calls.post(PODS, pod("bound"))
    binding = {"target": {"kind": "Node", "name": "n1"}}
    assert calls.post(f"{PODS}/bound/binding", binding).status == 201
    assert calls.delete(f"{PODS}/bound").meta["deletionGracePeriodSeconds"] == 30
    rv = calls.get(PODS).rv
    watch = calls.watch(PODS, resourceVersion=rv)
    calls.delete(f"{PODS}/bound", {"gracePeriodSeconds": 0})
    assert [line[9:17] for line in watch.read().splitlines()] == [b"MODIFIED", b'DELETED"']
    assert calls.get(f"{PODS}/bound").status == 404


def test_a_collection_is_deleted_by_selector(calls: Calls):
    for name in ("a", "b", "c"):
        calls.post(CONFIGMAPS, config_map(name, {"labels": {"k": name}}))
    assert calls.delete(CONFIGMAPS, labelSelector="k in (a,b)").names == ["a", "b"]
    assert calls.get(CONFIGMAPS).names == ["c"]


def test_plain_writes_make_the_user_agent_owner_of_what_changed(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a", k="1"), agent="creator/2.0")
    reply = calls.merge(ONE, {"data": {"k": "2"}}, agent="editor/1.0")
    owned = {e["manager"]: e["fieldsV1"]["f:data"] for e in reply.meta["managedFields"]}
    assert owned == {"creator": {}, "editor": {"f:k": {}}}


def test_in_process_calls_take_the_same_way_as_requests():
    cluster = Cluster("alpha")
    changes: list[Change] = []
    stop = cluster.subscribe(changes.append)
    created = cluster.create("v1/configmaps", config_map("a", k="1"), "default")
    cluster.patch("v1/configmaps", "default", "a", {"data": {"k": "2"}})
    with pytest.raises(ApiError) as refused:
        cluster.update("v1/configmaps", created)
    cluster.delete("v1/configmaps", "default", "a")
    assert refused.value.code == 409
    assert cluster.get("v1/configmaps", "default", "a") is None
    assert [change.type for change in changes] == ["ADDED", "MODIFIED", "DELETED"]
    assert [commit.type for commit in list(cluster.history)[-3:]] == [
        "ADDED",
        "MODIFIED",
        "DELETED",
    ]
    stop()
    cluster.create("v1/configmaps", config_map("b"), "default")
    assert len(changes) == 3


def test_what_is_returned_in_process_can_be_changed_without_harm():
    cluster = Cluster("alpha")
    cluster.create("v1/configmaps", config_map("a", k="1"), "default")
    listed = cluster.list("v1/configmaps", "default")[0]
    listed["data"]["k"] = "changed"
    assert cluster.list("v1/configmaps", "default")[0]["data"] == {"k": "1"}


def test_kube_systems_uid_follows_from_the_clusters_name():
    def uid(name: str) -> str:
        return Cluster(name).list("v1/namespaces")[-1]["metadata"]["uid"]

    assert uid("alpha") == uid("alpha") != uid("beta")


def test_a_scale_takes_patches_of_known_types_only(calls: Calls):
    calls.post(DEPLOYMENTS, deployment("d"))
    scale = f"{DEPLOYMENTS}/d/scale"
    patch = {"spec": {"replicas": 4}}
    assert calls.call("PATCH", scale, patch, content="application/json").status == 415
    answer = calls.call("PATCH", scale, patch, content=STRATEGIC)
    assert answer.document["spec"] == {"replicas": 4}


def test_the_name_in_a_path_is_decoded_once(calls: Calls):
    answer = calls.get(f"{CONFIGMAPS}/a%3Ab")  # as the listener hands it over for a%253Ab
    assert answer.message == 'configmaps "a%3Ab" not found'


def test_namespaces_are_not_deleted_all_at_once(calls: Calls):
    answer = calls.delete("/api/v1/namespaces")
    assert (answer.status, answer.document["reason"]) == (405, "MethodNotAllowed")


@pytest.mark.parametrize(("seconds", "expected"), [(10**15, 10**15), (-5, 1)])
def test_any_grace_period_can_be_asked_for(calls: Calls, seconds: int, expected: int):
    calls.post(PODS, pod("p", nodeName="n"))
    answer = calls.delete(f"{PODS}/p", {"gracePeriodSeconds": seconds})
    assert answer.meta["deletionGracePeriodSeconds"] == expected
    calls.post(PODS, pod("q", nodeName="n", terminationGracePeriodSeconds=seconds))
    assert calls.delete(f"{PODS}/q").meta["deletionGracePeriodSeconds"] == expected


def test_a_dry_run_of_some_stages_is_refused(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a"))
    answer = calls.delete(ONE, {"dryRun": ["Some"]})
    assert answer.status == 422
    assert answer.message.endswith('dryRun: Unsupported value: ["Some"]: supported values: "All"')
    assert calls.delete(ONE, {"dryRun": ["All"]}).status == 200
    assert calls.get(ONE).status == 200
