"""Lists, pages, selectors, watches, and what surprises people in them."""

import asyncio
from datetime import timedelta

import pytest

from emulator.support.kube_calls import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    PODS,
    TABLE,
    WIDGETS,
    Calls,
    changes,
    config_map,
    deployment,
    events,
    widget_definition,
)
from fleetbus_emulator.apiserver import Cluster, Watch


@pytest.fixture
def calls() -> Calls:
    return Calls(Cluster("alpha", seed=1))


def fill(calls: Calls, *names: str) -> None:
    for name in names:
        calls.post(CONFIGMAPS, config_map(name, {"labels": {"n": name}}))


def test_lists_are_in_key_order_and_their_items_carry_no_kind(calls: Calls):
    fill(calls, "b", "a", "c")
    reply = calls.get(CONFIGMAPS)
    assert reply.names == ["a", "b", "c"]
    assert reply.document["kind"] == "ConfigMapList"
    assert "kind" not in reply.document["items"][0]
    assert calls.get("/api/v1/namespaces/none/configmaps").document["items"] == []


def test_pages_show_the_snapshot_of_the_first(calls: Calls):
    fill(calls, "a", "b", "c", "d")
    first = calls.get(CONFIGMAPS, limit="2")
    assert first.meta["remainingItemCount"] == 2
    calls.post(CONFIGMAPS, config_map("bb"))
    calls.delete(f"{CONFIGMAPS}/d")
    calls.merge(f"{CONFIGMAPS}/c", {"data": {"late": "1"}})
    following = calls.get(CONFIGMAPS, limit="9", continue_=first.meta["continue"])
    assert following.names == ["c", "d"]
    assert "data" not in following.document["items"][0]
    assert following.rv == first.rv
    assert "continue" not in following.meta


def test_a_compacted_page_is_410_with_a_token_to_go_on(calls: Calls):
    fill(calls, "a", "b", "c")
    first = calls.get(CONFIGMAPS, limit="1")
    calls.delete(f"{CONFIGMAPS}/b")
    calls.cluster.compact()
    stale = calls.get(CONFIGMAPS, limit="1", continue_=first.meta["continue"])
    assert (stale.status, stale.document["reason"]) == (410, "Expired")
    following = calls.get(CONFIGMAPS, limit="9", continue_=stale.meta["continue"])
    assert following.names == ["c"]
    assert int(following.rv) > int(first.rv)


def test_list_parameters_are_checked(calls: Calls):
    fill(calls, "a", "b")
    token = calls.get(CONFIGMAPS, limit="1").meta["continue"]
    assert calls.get(CONFIGMAPS, limit="abc").status == 400
    assert calls.get(CONFIGMAPS, continue_="xxx").status == 400
    assert calls.get(CONFIGMAPS, continue_=token, resourceVersion="5").status == 400
    assert calls.get(CONFIGMAPS, resourceVersionMatch="Exact").status == 422
    assert calls.get(CONFIGMAPS, resourceVersion="0", limit="1").names == ["a", "b"]


def test_a_lists_version_is_the_clusters_not_that_of_its_items(calls: Calls):
    fill(calls, "a")
    before = int(calls.get(CONFIGMAPS).rv)
    calls.post(DEPLOYMENTS, deployment("d"))
    assert int(calls.get(CONFIGMAPS).rv) == before + 1


def test_a_list_from_the_future_times_out_and_a_watch_from_it_is_silent(calls: Calls):
    future = str(calls.cluster.resource_version + 1000)
    reply = calls.get(CONFIGMAPS, resourceVersion=future)
    assert reply.status == 504
    assert reply.document["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    watch = calls.watch(CONFIGMAPS, resourceVersion=future)
    fill(calls, "a")
    assert changes(watch) == []


def test_an_exact_past_state_can_be_listed_until_it_is_compacted(calls: Calls):
    fill(calls, "a")
    rv = calls.get(CONFIGMAPS).rv
    fill(calls, "b")
    exact = {"resourceVersion": rv, "resourceVersionMatch": "Exact"}
    assert calls.get(CONFIGMAPS, **exact).names == ["a"]
    calls.cluster.compact()
    assert calls.get(CONFIGMAPS, **exact).status == 410


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("n=a", ["a"]),
        ("n!=a", ["b", "c"]),
        ("n in (a, b)", ["a", "b"]),
        ("n notin (a,b),n", ["c"]),
        ("!n", []),
        ("n", ["a", "b", "c"]),
    ],
)
def test_label_selectors_select(calls: Calls, selector: str, names: list[str]):
    fill(calls, "a", "b", "c")
    assert calls.get(CONFIGMAPS, labelSelector=selector).names == names


def test_field_selectors_know_few_fields(calls: Calls):
    fill(calls, "a", "b")
    assert calls.get(CONFIGMAPS, fieldSelector="metadata.name=a").names == ["a"]
    assert calls.get(CONFIGMAPS, fieldSelector="metadata.name!=a").names == ["b"]
    assert calls.get(CONFIGMAPS, fieldSelector="data.x=1").status == 400
    assert calls.get(PODS, fieldSelector="spec.nodeName=n1,status.phase=Running").status == 200


def test_a_watch_without_version_begins_with_what_exists(calls: Calls):
    fill(calls, "a", "b")
    watch = calls.watch(CONFIGMAPS)
    assert changes(watch) == ["ADDED:a", "ADDED:b"]
    calls.delete(f"{CONFIGMAPS}/a")
    assert changes(watch) == ["DELETED:a"]


def test_a_deleted_event_carries_the_last_state_and_the_deletions_version(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a", {"finalizers": ["x.io/f"]}, k="v"))
    watch = calls.watch(CONFIGMAPS, resourceVersion=calls.get(CONFIGMAPS).rv)
    calls.delete(f"{CONFIGMAPS}/a")
    calls.merge(f"{CONFIGMAPS}/a", {"metadata": {"finalizers": None}})
    marked, gone = events(watch)
    assert [marked["type"], gone["type"]] == ["MODIFIED", "DELETED"]
    assert gone["object"]["data"] == {"k": "v"}
    assert gone["object"]["metadata"]["finalizers"] == ["x.io/f"]
    assert gone["object"]["metadata"]["resourceVersion"] == str(calls.cluster.resource_version)


def test_leaving_the_selector_is_a_deletion_with_the_old_labels_and_the_new_version(
    calls: Calls,
):
    fill(calls, "x")
    watch = calls.watch(CONFIGMAPS, resourceVersion=calls.get(CONFIGMAPS).rv, labelSelector="k=v")
    calls.merge(f"{CONFIGMAPS}/x", {"metadata": {"labels": {"k": "v"}}})
    calls.merge(f"{CONFIGMAPS}/x", {"data": {"d": "1"}})
    rv = calls.merge(f"{CONFIGMAPS}/x", {"metadata": {"labels": {"k": "w"}}}).rv
    calls.delete(f"{CONFIGMAPS}/x")
    entered, changed, left = events(watch)
    assert [e["type"] for e in (entered, changed, left)] == ["ADDED", "MODIFIED", "DELETED"]
    assert left["object"]["metadata"]["labels"]["k"] == "v"
    assert left["object"]["metadata"]["resourceVersion"] == rv


def test_a_too_old_watch_is_200_and_one_error_event(calls: Calls):
    fill(calls, "a", "b")
    rv = calls.get(f"{CONFIGMAPS}/a").rv
    calls.cluster.compact()
    watch = calls.watch(CONFIGMAPS, resourceVersion=rv)
    (error,) = events(watch)
    assert error["type"] == "ERROR"
    assert (error["object"]["code"], error["object"]["reason"]) == (410, "Expired")
    assert watch.ended


def test_a_watcher_that_the_log_leaves_behind_gets_410():
    calls = Calls(Cluster("alpha", event_capacity=4))
    watch = calls.watch(CONFIGMAPS, resourceVersion=str(calls.cluster.resource_version))
    fill(calls, *(f"x{number}" for number in range(20)))
    assert [event["type"] for event in events(watch)] == ["ERROR"]


def test_watches_keep_to_their_namespace_and_name(calls: Calls):
    calls.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    rv = calls.get(CONFIGMAPS).rv
    all_of_them = calls.watch("/api/v1/configmaps", resourceVersion=rv)
    other = calls.watch("/api/v1/namespaces/other/configmaps", resourceVersion=rv)
    named = calls.watch(CONFIGMAPS, resourceVersion=rv, fieldSelector="metadata.name=b")
    fill(calls, "a", "b")
    calls.post("/api/v1/namespaces/other/configmaps", config_map("c"))
    assert changes(all_of_them) == ["ADDED:a", "ADDED:b", "ADDED:c"]
    assert changes(other) == ["ADDED:c"]
    assert changes(named) == ["ADDED:b"]


@pytest.mark.parametrize(("value", "watches"), [("", True), ("yes", True), ("False", False)])
def test_everything_but_0_and_false_is_true(calls: Calls, value: str, *, watches: bool):
    answer = calls.request("GET", CONFIGMAPS, watch=value)
    assert isinstance(answer, Watch) is watches


def test_a_watch_parameter_on_a_named_path_is_ignored(calls: Calls):
    fill(calls, "a")
    assert calls.get(f"{CONFIGMAPS}/a", watch="1").document["kind"] == "ConfigMap"


def test_an_unreadable_version_is_500_on_a_watch(calls: Calls):
    assert calls.call("GET", CONFIGMAPS, watch="1", resourceVersion="abc").status == 500


async def _collected(watch: Watch) -> list[dict[str, object]]:
    collected: list[dict[str, object]] = []
    async with asyncio.timeout(10):
        while not watch.ended:
            collected += events(watch)
            if not watch.ended:
                await watch.wait()
    return collected


async def test_bookmarks_carry_a_version_and_no_name():
    calls = Calls(Cluster("alpha", bookmark_interval=timedelta(milliseconds=20)))
    options = {"resourceVersion": calls.get(CONFIGMAPS).rv, "timeoutSeconds": "1"}
    silent = calls.watch(CONFIGMAPS, **options)
    watch = calls.watch(CONFIGMAPS, allowWatchBookmarks="true", **options)
    calls.post(DEPLOYMENTS, deployment("d"))
    marks, nothing = await asyncio.gather(_collected(watch), _collected(silent))
    assert nothing == []
    assert len(marks) > 5
    rv = str(calls.cluster.resource_version)
    assert marks[-1] == {
        "type": "BOOKMARK",
        "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": rv}},
    }


def test_watch_lists_end_their_initial_events_with_an_annotated_bookmark(calls: Calls):
    fill(calls, "a")
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    *_, last = events(calls.watch(CONFIGMAPS, allowWatchBookmarks="1", **options))
    assert last["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert changes(calls.watch(CONFIGMAPS, **options)) == ["ADDED:a"]
    assert calls.call("GET", CONFIGMAPS, watch="1", sendInitialEvents="true").status == 422


def restored(calls: Calls, gvr: str, count: int) -> list[str]:
    names = [f"n{number:04}" for number in range(count)]
    place = {"namespace": "default"}
    calls.cluster.restore((gvr, {"metadata": {"name": n, **place}}) for n in names)
    return names


def portions(watch: Watch) -> list[list[str]]:
    portion_names: list[list[str]] = []
    while portion := changes(watch):
        portion_names.append(portion)
    return portion_names


def test_a_large_present_state_comes_in_portions_and_its_end_is_marked_once(calls: Calls):
    names = restored(calls, "v1/configmaps", 1_200)
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    watch = calls.watch(CONFIGMAPS, allowWatchBookmarks="1", **options)
    first = changes(watch)
    calls.post(CONFIGMAPS, config_map("later"))
    all_portions = [first, *portions(watch)]
    assert max(map(len, all_portions)) < 600
    *initial, mark, later = [line for portion in all_portions for line in portion]
    assert initial == [f"ADDED:{name}" for name in names]
    assert (mark, later) == ("BOOKMARK:None", "ADDED:later")


def test_events_that_a_watch_is_behind_come_in_portions_also_when_its_type_goes(calls: Calls):
    calls.post(CRDS, widget_definition())
    watch = calls.watch(WIDGETS, resourceVersion=str(calls.cluster.resource_version))
    names = restored(calls, "example.com/v1/widgets", 700)
    calls.delete(f"{CRDS}/widgets.example.com")
    all_portions = portions(watch)
    assert max(map(len, all_portions)) < 600
    lines = [line for portion in all_portions for line in portion]
    assert lines == [f"{kind}:{name}" for kind in ("ADDED", "DELETED") for name in names]
    assert watch.ended


def test_tables_have_the_columns_kubectl_prints(calls: Calls):
    calls.post(DEPLOYMENTS, deployment("d", replicas=2))
    table = calls.get(DEPLOYMENTS, accept=TABLE).document
    columns = [c["name"] for c in table["columnDefinitions"] if c["priority"] == 0]
    assert columns == ["Name", "Ready", "Up-to-date", "Available", "Age"]
    assert table["rows"][0]["cells"][:4] == ["d", "0/2", "0", "0"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    (event,) = events(calls.watch(DEPLOYMENTS, accept=TABLE))
    assert event["object"]["kind"] == "Table"


def test_metadata_alone_can_be_asked_for(calls: Calls):
    fill(calls, "a")
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    reply = calls.get(CONFIGMAPS, accept=accept).document
    assert reply["kind"] == "PartialObjectMetadataList"
    assert set(reply["items"][0]) == {"kind", "apiVersion", "metadata"}


def test_an_unacceptable_form_is_406(calls: Calls):
    assert calls.get(CONFIGMAPS, accept="application/vnd.kubernetes.protobuf").status == 406
    assert calls.get(CONFIGMAPS, accept="application/yaml").document.startswith("kind:")


def test_unknown_resources_are_plain_text_and_missing_objects_a_status(calls: Calls):
    unknown = calls.get("/apis/none.io/v1/things")
    assert (unknown.status, unknown.document) == (404, "404 page not found\n")
    missing = calls.get(f"{DEPLOYMENTS}/x")
    assert missing.message == 'deployments.apps "x" not found'


def test_discovery_lists_every_type_in_both_forms(calls: Calls):
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    aggregated = calls.get("/apis", accept=accept)
    assert aggregated.content_type.endswith("as=APIGroupDiscoveryList")
    groups = [item["metadata"]["name"] for item in aggregated.document["items"]]
    legacy = [group["name"] for group in calls.get("/apis").document["groups"]]
    assert groups == legacy
    core = {r["name"] for r in calls.get("/api/v1").document["resources"]}
    assert {"pods", "pods/status", "namespaces", "configmaps", "persistentvolumes"} <= core


def test_events_are_served_by_two_groups_from_one_store(calls: Calls):
    path = "/api/v1/namespaces/default/events"
    involved = {"kind": "Pod", "name": "p", "namespace": "default"}
    event = {"metadata": {"name": "e"}, "involvedObject": involved, "reason": "R", "message": "m"}
    calls.post(path, event)
    other = calls.get("/apis/events.k8s.io/v1/namespaces/default/events/e").document
    assert other["apiVersion"] == "events.k8s.io/v1"
    assert (other["regarding"], other["note"]) == (involved, "m")
    assert calls.get(path, fieldSelector="involvedObject.name=p").names == ["e"]


def test_requests_are_logged_for_checkers(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a"), agent="watcher/1", fieldManager="m")
    calls.watch(CONFIGMAPS, agent="watcher/1")
    created, watched = calls.cluster.requests
    assert (created.verb, created.status, created.field_manager) == ("create", 201, "m")
    assert (watched.verb, watched.status, watched.user_agent) == ("watch", 200, "watcher/1")


def test_a_wrong_token_is_401_and_none_is_403():
    calls = Calls(Cluster("alpha", tokens={"good": "admin"}))
    assert calls.get(CONFIGMAPS, bearer="good").status == 200
    assert calls.get(CONFIGMAPS, bearer="bad").status == 401
    refused = calls.get(CONFIGMAPS)
    assert refused.status == 403
    assert 'User "system:anonymous" cannot list resource "configmaps"' in refused.message


def test_reviews_answer_from_the_same_tokens_and_rules():
    calls = Calls(
        Cluster("alpha", tokens={"good": "ann"}, authorize=lambda access: access.verb != "delete")
    )
    review = {"spec": {"token": "good"}}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    status = calls.post(path, review, bearer="good").document["status"]
    assert status["user"]["username"] == "ann"
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    for verb, allowed in (("get", True), ("delete", False)):
        spec = {"user": "ann", "resourceAttributes": {"verb": verb, "resource": "pods"}}
        reply = calls.post(path, {"spec": spec}, bearer="good")
        assert reply.document["status"] == {"allowed": allowed}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            {"resourceVersion": "5", "resourceVersionMatch": "Newer"},
            'Unsupported value: "Newer": supported values: "Exact", "NotOlderThan", ""',
        ),
        (
            {"resourceVersion": "0", "resourceVersionMatch": "Exact"},
            'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
        ),
        (
            {"resourceVersion": "5", "resourceVersionMatch": "Exact", "continue_": "x"},
            "Forbidden: resourceVersionMatch is forbidden when continue is provided",
        ),
        ({"sendInitialEvents": "true"}, "Forbidden: sendInitialEvents is forbidden for list"),
    ],
)
def test_what_cannot_be_asked_of_a_list_is_refused(
    calls: Calls, query: dict[str, str], message: str
):
    answer = calls.get(CONFIGMAPS, **query)
    assert answer.status == 422
    assert answer.message.endswith(message)


def test_a_watch_without_initial_events_begins_now_at_any_version(calls: Calls):
    fill(calls, "a")
    options = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
    watch = calls.watch(CONFIGMAPS, resourceVersion="0", **options)
    assert changes(watch) == []
    fill(calls, "b")
    assert changes(watch) == ["ADDED:b"]


def test_initial_events_end_without_a_promise_if_the_log_has_run_on():
    calls = Calls(Cluster("alpha", seed=1, event_capacity=600))
    fill(calls, *(f"m{n}" for n in range(510)))
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    watch = calls.watch(CONFIGMAPS, allowWatchBookmarks="true", **options)
    assert len(events(watch)) == 500
    for n in range(800):
        calls.cluster.patch("v1/configmaps", "default", "m0", {"data": {"n": str(n)}})
    assert [event["type"] for event in events(watch)] == ["ADDED"] * 10 + ["ERROR"]
    assert watch.ended


def test_a_page_of_a_future_that_was_rolled_back_is_refused(calls: Calls):
    fill(calls, "a", "b")
    back = calls.cluster.resource_version
    fill(calls, "c")
    token = calls.get(CONFIGMAPS, limit="1").meta["continue"]
    calls.cluster.roll_back(back)
    answer = calls.get(CONFIGMAPS, continue_=token)
    assert (answer.status, answer.message.rpartition(": ")[2]) == (
        500,
        "required revision is a future revision",
    )
