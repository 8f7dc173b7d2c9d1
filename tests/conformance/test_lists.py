"""LIST: shape, order, pages, resource versions, selectors."""

from __future__ import annotations

from typing import Any

import pytest

from support.api.conformance_client import Api
from support.api.conformance_objects import Space, config_map


@pytest.fixture
def five(api: Api, space: Space, name: str) -> dict[str, str]:
    """Five widgets; the selector of just these."""
    for letter in "bdace":
        labels = {"case": name, "letter": letter}
        assert api.post(space.widgets, space.widget(f"{name}-{letter}", {"labels": labels})).rv
    return {"labelSelector": f"case={name}"}


def letters(names: list[str]) -> str:
    return "".join(name[-1] for name in names)


def test_a_list_is_sorted_and_its_version_covers_its_items(
    api: Api, space: Space, five: dict[str, str]
):
    reply = api.get(space.widgets, **five)
    assert (reply.kind, reply.body["apiVersion"]) == ("WidgetList", f"{space.group}/v1")
    assert letters(reply.names) == "abcde"
    assert int(reply.rv) >= max(int(i["metadata"]["resourceVersion"]) for i in reply.items)


def test_an_empty_list_is_no_null(api: Api, space: Space):
    assert api.get(space.widgets, labelSelector="none=x").body["items"] == []
    assert api.get("/api/v1/namespaces/no-such-namespace/configmaps").body["items"] == []


def test_only_items_of_custom_resources_tell_their_type(
    api: Api, space: Space, five: dict[str, str], name: str
):
    assert api.get(space.widgets, **five).items[0]["kind"] == "Widget"
    api.post(space.core("configmaps"), config_map(name, {"labels": {"case": name}}))
    (item,) = api.get(space.core("configmaps"), **five).items
    assert not {"kind", "apiVersion"} & item.keys()
    assert api.get(f"{space.core('configmaps')}/{name}").kind == "ConfigMap"


def test_all_namespaces_are_listed_together(api: Api, space: Space, five: dict[str, str]):
    assert letters(api.get(f"/apis/{space.group}/v1/widgets", **five).names) == "abcde"


def test_versions_count_the_writes_to_all_resources(api: Api, space: Space, name: str):
    before = int(api.get(space.widgets).rv)
    api.post(space.core("configmaps"), config_map(name))
    assert int(api.get(space.widgets).rv) > before


# pages ------------------------------------------------------------------------------------------


def test_pages_are_a_snapshot_under_one_version(
    api: Api, space: Space, five: dict[str, str], name: str
):
    first = api.get(space.widgets, limit="2", **five)
    labels = {"labels": {"case": name}}
    api.post(space.widgets, space.widget(f"{name}-bb", labels))
    api.delete(f"{space.widgets}/{name}-e")
    second = api.get(space.widgets, limit="2", continue_=first.meta["continue"], **five)
    third = api.get(space.widgets, limit="2", continue_=second.meta["continue"], **five)
    assert [letters(page.names) for page in (first, second, third)] == ["ab", "cd", "e"]
    assert first.rv == second.rv == third.rv
    assert not third.meta.get("continue")


def test_what_remains_is_counted_without_selectors_only(
    api: Api, space: Space, five: dict[str, str]
):
    total = len(api.get(space.widgets).items)
    assert api.get(space.widgets, limit="2").meta["remainingItemCount"] == total - 2
    assert "remainingItemCount" not in api.get(space.widgets, limit="2", **five).meta


def test_version_0_knows_no_pages(api: Api, space: Space, five: dict[str, str]):
    reply = api.get(space.widgets, limit="2", resourceVersion="0", **five)
    assert len(reply.items) == 5
    assert not reply.meta.get("continue")


@pytest.mark.parametrize(
    "options",
    [{"continue_": "garbage"}, {"limit": "abc"}, {"timeoutSeconds": "abc"}],
    ids=["token", "limit", "timeout"],
)
def test_bad_paging_is_a_bad_request(api: Api, space: Space, options: dict[str, str]):
    assert api.get(space.widgets, **options).failed == (400, "BadRequest")


def test_a_page_may_not_ask_for_a_version(api: Api, space: Space, five: dict[str, str]):
    token = api.get(space.widgets, limit="2", **five).meta["continue"]
    reply = api.get(space.widgets, limit="2", resourceVersion="5", continue_=token)
    assert reply.failed == (400, "BadRequest")
    assert reply.message == "specifying resource version is not allowed when using continue"


def test_a_negative_limit_is_none(api: Api, space: Space, five: dict[str, str]):
    assert len(api.get(space.widgets, limit="-1", **five).items) == 5


@pytest.mark.emulator
def test_an_expired_page_is_410_and_brings_a_token_to_go_on_with(
    api: Api, space: Space, five: dict[str, str], name: str
):
    first = api.get(space.widgets, limit="2", **five)
    api.post(space.widgets, space.widget(f"{name}-f", {"labels": {"case": name}}))
    api.compact()
    reply = api.get(space.widgets, limit="2", continue_=first.meta["continue"], **five)
    assert reply.failed == (410, "Expired")
    following = api.get(space.widgets, continue_=reply.meta["continue"], **five)
    assert letters(following.names) == "cdef"
    assert int(following.rv) > int(first.rv)


# versions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("match", [{}, {"resourceVersionMatch": "NotOlderThan"}])
def test_an_old_version_is_answered_with_the_latest(
    api: Api, space: Space, five: dict[str, str], match: dict[str, str]
):
    assert len(api.get(space.widgets, resourceVersion="1", **match, **five).items) == 5


def test_an_exact_version_is_answered_with_that(
    api: Api, space: Space, five: dict[str, str], name: str
):
    rv = api.get(space.widgets).rv
    api.delete(f"{space.widgets}/{name}-a")
    exact = {"resourceVersion": rv, "resourceVersionMatch": "Exact"}
    reply = api.get(space.widgets, **exact, **five)
    assert (letters(reply.names), reply.rv) == ("abcde", rv)


def test_a_match_needs_a_version(api: Api, space: Space):
    reply = api.get(space.widgets, resourceVersionMatch="Exact")
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("resourceVersionMatch", "FieldValueForbidden")]
    assert reply.details["kind"] == "ListOptions"


def test_a_version_is_a_number(api: Api, space: Space):
    assert api.get(space.widgets, resourceVersion="abc").status in {400, 500}


@pytest.mark.patient
def test_a_future_version_is_waited_for_in_vain(api: Api, space: Space):
    future = str(int(api.get(space.widgets).rv) + 1_000_000)
    reply = api.get(space.widgets, resourceVersion=future)
    assert reply.failed == (504, "Timeout")
    assert reply.details["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert 2 <= reply.seconds <= 5


# selectors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("letter=a", "a"),
        ("letter==a", "a"),
        ("letter!=a", "bcde"),
        ("letter in (a, e,x)", "ae"),
        ("letter notin (a,b)", "cde"),
        ("letter,!other", "abcde"),
        ("!letter", ""),
        ("letter>1", ""),
    ],
)
def test_label_selectors(
    api: Api, space: Space, five: dict[str, str], selector: str, selected: str
):
    both = f"{five['labelSelector']},{selector}"
    assert letters(api.get(space.widgets, labelSelector=both).names) == selected


@pytest.mark.parametrize("selector", ["a b", "a in 1", "a=-x", "a/b/c=1", "a>b", "a,,b"])
def test_a_bad_label_selector_is_a_bad_request(api: Api, space: Space, selector: str):
    assert api.get(space.widgets, labelSelector=selector).failed == (400, "BadRequest")


def test_field_selectors_know_name_and_namespace(
    api: Api, space: Space, five: dict[str, str], name: str
):
    selector = f"metadata.name={name}-a"
    assert letters(api.get(space.widgets, fieldSelector=selector).names) == "a"
    both = f"{selector},metadata.namespace={space.namespace}"
    assert letters(api.get(space.widgets, fieldSelector=both).names) == "a"
    other = f"metadata.name!={name}-a"
    assert letters(api.get(space.widgets, fieldSelector=other, **five).names) == "bcde"


SELECTABLE = {
    "/api/v1/pods": [
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        *("spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"),
    ],
    "/api/v1/nodes": ["metadata.name", "spec.unschedulable"],
    "/api/v1/namespaces": ["metadata.name", "status.phase"],
    "/api/v1/secrets": ["metadata.namespace", "type"],
    "/api/v1/services": ["spec.clusterIP", "spec.type"],
    "/api/v1/replicationcontrollers": ["status.replicas"],
    "/api/v1/events": [
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    "/apis/events.k8s.io/v1/events": ["regarding.name", "reason", "reportingController", "type"],
    "/apis/batch/v1/jobs": ["status.successful"],
    "/api/v1/persistentvolumes": ["metadata.namespace"],
    "/apis/apps/v1/deployments": ["metadata.name", "metadata.namespace"],
}
KNOWN = 'is not a known field selector: only "metadata.name", "metadata.namespace"'
UNKNOWN = {
    "/api/v1/nodes": ("metadata.namespace", "field label not supported: metadata.namespace"),
    "/api/v1/namespaces": ("name", "field label not supported: name"),
    "/api/v1/pods": ("spec.x", "field label not supported: spec.x"),
    "/api/v1/events": ("regarding.name", "field label not supported: regarding.name"),
    "/apis/events.k8s.io/v1/events": ("source", "field label not supported: source"),
    "/apis/batch/v1/jobs": ("spec.x", 'field label "spec.x" not supported for Job'),
    "/apis/batch/v1/cronjobs": ("status.successful", f'"status.successful" {KNOWN}'),
    "/apis/apps/v1/deployments": ("status.replicas", f'"status.replicas" {KNOWN}'),
    "/api/v1/persistentvolumes": ("status.phase", f'"status.phase" {KNOWN}'),
}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.since("1.31")] if path == "/api/v1/services" else [])
        for path in SELECTABLE
    ],
)
def test_each_type_is_selected_by_its_own_fields(api: Api, path: str):
    for field in SELECTABLE[path]:
        assert api.get(path, fieldSelector=f"{field}=none-has-this").names == []


@pytest.mark.parametrize("path", UNKNOWN)
def test_each_type_refuses_other_fields_in_its_own_words(api: Api, path: str):
    field, why = UNKNOWN[path]
    reply = api.get(path, fieldSelector=f"{field}=x")
    assert (reply.status, reply.message) == (400, why)


def test_a_field_that_is_absent_has_the_text_of_its_zero_value(api: Api, space: Space, name: str):
    api.post("/api/v1/nodes", {"metadata": {"name": name}})
    try:
        chosen = f"metadata.name={name},spec.unschedulable="
        assert api.get("/api/v1/nodes", fieldSelector=f"{chosen}false").names == [name]
        assert api.get("/api/v1/nodes", fieldSelector=f"{chosen}true").names == []
        api.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
        assert api.get("/api/v1/nodes", fieldSelector=f"{chosen}true").names == [name]
    finally:
        api.delete(f"/api/v1/nodes/{name}")
    suspended = job(name)
    suspended["spec"]["suspend"] = True
    path = f"/apis/batch/v1/namespaces/{space.namespace}/jobs"
    api.post(path, suspended)
    chosen = f"metadata.name={name},status.successful="
    assert api.get(path, fieldSelector=f"{chosen}0").names == [name]
    assert api.get(path, fieldSelector=f"{chosen}1").names == []


def job(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "registry.example.com/c:1"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {"metadata": {"name": name}, "spec": {"template": {"spec": pod}}}


@pytest.mark.parametrize("selector", ["spec.size=3", "metadata.name", "metadata.uid=x"])
def test_a_bad_field_selector_is_a_bad_request(api: Api, space: Space, selector: str):
    assert api.get(space.widgets, fieldSelector=selector).failed == (400, "BadRequest")


@pytest.mark.parametrize(
    "selector",
    ["status.phase=Pending", "spec.nodeName=n", "spec.restartPolicy=Always", "status.podIP=1"],
)
def test_pods_can_be_selected_by_more_fields(api: Api, space: Space, selector: str):
    assert api.get(space.core("pods"), fieldSelector=selector).status == 200
