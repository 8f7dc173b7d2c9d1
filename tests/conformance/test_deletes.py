"""DELETE: answers, preconditions, finalizers, propagation, grace."""

from __future__ import annotations

from typing import Any

import pytest

from support.api.conformance_client import Api, until
from support.api.conformance_objects import Space, config_map, deployment, pod

NOWHERE = "no-such-node"


@pytest.fixture
def one(api: Api, space: Space, name: str) -> str:
    """The path of a widget."""
    assert api.post(space.widgets, space.widget(name)).status == 201
    return f"{space.widgets}/{name}"


def test_what_is_gone_is_answered_with_a_status(api: Api, space: Space, name: str, one: str):
    uid = api.get(one).meta["uid"]
    reply = api.delete(one)
    assert (reply.status, reply.kind, reply.body["status"]) == (200, "Status", "Success")
    assert reply.details == {"name": name, "group": space.group, "kind": "widgets", "uid": uid}
    assert api.delete(one).failed == (404, "NotFound")


def test_service_accounts_are_answered_with_the_object(api: Api, space: Space, name: str):
    api.post(space.core("serviceaccounts"), {"metadata": {"name": name}})
    assert api.delete(f"{space.core('serviceaccounts')}/{name}").kind == "ServiceAccount"
    api.post(space.core("configmaps"), config_map(name))
    assert api.delete(f"{space.core('configmaps')}/{name}").kind == "Status"


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_a_precondition_names_the_kind(api: Api, space: Space, name: str, one: str, field: str):
    reply = api.delete(one, {"preconditions": {field: "1"}})
    assert reply.failed == (409, "Conflict")
    assert reply.details == {"name": name, "group": space.group, "kind": "Widget"}
    text = f'Operation cannot be fulfilled on Widget.{space.group} "{name}": the '
    assert reply.message.startswith(text)
    meta = api.get(one).meta
    assert api.delete(one, {"preconditions": {field: meta[field]}}).status == 200


def test_a_dry_run_deletes_nothing(api: Api, one: str):
    assert api.delete(one, dryRun="All").status == 200
    assert api.get(one).status == 200
    assert api.delete(one, {"dryRun": ["All"]}).status == 200
    assert api.get(one).status == 200


def test_the_query_of_a_deletion_counts_only_without_a_body(api: Api, one: str):
    assert api.delete(one, {"propagationPolicy": "Background"}, dryRun="All").status == 200
    assert api.get(one).status == 404, "it was no dry run"


@pytest.mark.parametrize(
    ("body", "query"),
    [
        ({"orphanDependents": True, "propagationPolicy": "Background"}, {}),
        (None, {"propagationPolicy": "Nope"}),
    ],
)
def test_options_are_checked(api: Api, one: str, body: Any, query: dict[str, str]):
    reply = api.delete(one, body, **query)
    assert reply.failed == (422, "Invalid")
    assert reply.details["kind"] == "DeleteOptions"
    assert reply.causes[0][0] == "propagationPolicy"


def test_options_may_come_under_any_group(api: Api, space: Space, one: str):
    options = {"kind": "DeleteOptions", "apiVersion": f"{space.group}/v1", "gracePeriodSeconds": 5}
    assert api.delete(one, options).status == 200


# finalizers -------------------------------------------------------------------------------------


@pytest.fixture
def held(api: Api, space: Space, name: str) -> str:
    """The path of a widget that a finalizer holds."""
    meta = {"finalizers": ["example.com/f"]}
    assert api.post(space.widgets, space.widget(name, meta)).status == 201
    return f"{space.widgets}/{name}"


def test_a_finalizer_holds_and_the_object_tells(api: Api, held: str):
    reply = api.delete(held)
    assert (reply.status, reply.kind) == (200, "Widget")
    assert reply.meta["deletionGracePeriodSeconds"] == 0
    assert reply.meta["generation"] == 2
    again = api.delete(held)
    assert (again.rv, again.meta["deletionTimestamp"]) == (
        reply.rv,
        reply.meta["deletionTimestamp"],
    )
    last = api.merge(held, {"metadata": {"finalizers": []}})
    assert last.status == 200
    assert api.get(held).failed == (404, "NotFound")


def test_the_spec_may_change_but_finalizers_only_go(api: Api, held: str):
    api.delete(held)
    assert api.merge(held, {"spec": {"size": 7}}).meta["generation"] == 3
    more = {"metadata": {"finalizers": ["example.com/f", "example.com/g"]}}
    reply = api.merge(held, more)
    assert reply.failed == (422, "Invalid")
    assert ("metadata.finalizers", "FieldValueForbidden") in reply.causes
    assert "deletionTimestamp" in api.merge(held, {"metadata": {"deletionTimestamp": None}}).meta


def test_a_name_is_taken_while_its_object_goes(api: Api, space: Space, name: str, held: str):
    api.delete(held)
    reply = api.post(space.widgets, space.widget(name))
    assert reply.failed == (409, "AlreadyExists")
    assert reply.message.startswith("object is being deleted: ")


# collections ------------------------------------------------------------------------------------


def test_a_collection_is_deleted_by_selector(api: Api, space: Space, name: str):
    for number in range(3):
        labels = {"labels": {"case": name}}
        api.post(space.widgets, space.widget(f"{name}-{number}", labels))
    api.post(space.widgets, space.widget(name))
    reply = api.delete(space.widgets, labelSelector=f"case={name}")
    assert (reply.status, reply.kind, len(reply.items)) == (200, "WidgetList", 3)
    assert api.get(space.widgets, labelSelector=f"case={name}").items == []
    assert api.get(f"{space.widgets}/{name}").status == 200


# propagation ------------------------------------------------------------------------------------


def owned(api: Api, space: Space, owner: str, name: str) -> str:
    """The path of a ConfigMap that belongs to a widget."""
    reply = api.get(owner)
    reference = {
        "apiVersion": reply.body["apiVersion"],
        "kind": "Widget",
        "name": reply.meta["name"],
        "uid": reply.meta["uid"],
        "blockOwnerDeletion": True,
    }
    body = config_map(name, {"ownerReferences": [reference]})
    assert api.post(space.core("configmaps"), body).status == 201
    return f"{space.core('configmaps')}/{name}"


@pytest.mark.parametrize(
    ("policy", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")]
)
def test_a_policy_is_a_finalizer(api: Api, held: str, policy: str, finalizer: str):
    reply = api.delete(held, propagationPolicy=policy)
    assert reply.kind == "Widget"
    assert finalizer in reply.meta["finalizers"]


def test_dependents_follow_in_the_background(api: Api, space: Space, name: str, one: str):
    child = owned(api, space, one, name)
    assert api.delete(one, propagationPolicy="Background").kind == "Status"
    until(lambda: api.get(child).status == 404, 90)


def test_the_owner_waits_for_its_dependents_in_the_foreground(
    api: Api, space: Space, name: str, one: str
):
    child = owned(api, space, one, name)
    api.merge(child, {"metadata": {"finalizers": ["example.com/f"]}})
    assert api.delete(one, propagationPolicy="Foreground").kind == "Widget"
    until(lambda: "deletionTimestamp" in api.get(child).meta, 90)
    assert api.get(one).meta["finalizers"] == ["foregroundDeletion"]
    api.merge(child, {"metadata": {"finalizers": None}})
    until(lambda: api.get(one).status == 404)


def test_orphans_stay_without_their_owner(api: Api, space: Space, name: str, one: str):
    child = owned(api, space, one, name)
    api.delete(one, propagationPolicy="Orphan")
    until(lambda: api.get(one).status == 404, 90)
    until(lambda: "ownerReferences" not in api.get(child).meta)


def test_who_belongs_to_nobody_is_collected(api: Api, space: Space, name: str):
    ghost = {"apiVersion": "v1", "kind": "ConfigMap", "name": "ghost", "uid": f"ghost-{name}"}
    body = config_map(name, {"ownerReferences": [ghost]})
    assert api.post(space.core("configmaps"), body).status == 201
    until(lambda: api.get(f"{space.core('configmaps')}/{name}").status == 404)


def test_a_deployment_takes_its_replica_sets_along(api: Api, space: Space, name: str):
    path, sets = f"{space.apps('deployments')}/{name}", space.apps("replicasets")
    api.post(space.apps("deployments"), deployment(name))
    selector = {"labelSelector": f"app={name}"}
    until(lambda: api.get(sets, **selector).items)
    api.delete(path)
    until(lambda: not api.get(sets, **selector).items)


def test_a_job_leaves_its_pods_behind(api: Api, space: Space, name: str):
    jobs = f"/apis/batch/v1/namespaces/{space.namespace}/jobs"
    spec = {**pod(name)["spec"], "restartPolicy": "Never", "schedulerName": "nobody"}
    body = {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}
    assert api.post(jobs, body).status == 201
    selector = {"labelSelector": f"job-name={name}"}
    until(lambda: api.get(space.core("pods"), **selector).items)
    api.delete(f"{jobs}/{name}")
    until(lambda: api.get(f"{jobs}/{name}").status == 404)
    until(
        lambda: (
            "ownerReferences" not in api.get(space.core("pods"), **selector).items[0]["metadata"]
        )
    )
    api.delete(space.core("pods"), gracePeriodSeconds="0", **selector)


# grace ------------------------------------------------------------------------------------------


def test_a_pod_on_a_node_has_time_to_stop(api: Api, space: Space, name: str):
    path = f"{space.core('pods')}/{name}"
    created = api.post(space.core("pods"), pod(name, nodeName=NOWHERE))
    assert created.status == 201
    reply = api.delete(path)
    assert (reply.kind, reply.meta["deletionGracePeriodSeconds"]) == ("Pod", 30)
    assert api.get(path).status == 200
    assert api.delete(path, {"gracePeriodSeconds": 0}).kind == "Pod"
    assert api.get(path).status == 404
    stream = api.watch(
        space.core("pods"),
        resourceVersion=created.rv,
        fieldSelector=f"metadata.name={name}",
    )
    grace = [
        (e["type"], m.get("deletionGracePeriodSeconds"))
        for e, m in zip(stream.events, stream.metas, strict=True)
    ]
    assert ("MODIFIED", 30) in grace
    assert grace[-1] == ("DELETED", 0)


def test_a_pod_without_a_node_goes_at_once(api: Api, space: Space, name: str):
    path = f"{space.core('pods')}/{name}"
    created = api.post(space.core("pods"), pod(name, schedulerName="nobody"))
    assert api.delete(path).kind == "Pod"
    assert api.get(path).status == 404
    selector = f"metadata.name={name}"
    stream = api.watch(space.core("pods"), resourceVersion=created.rv, fieldSelector=selector)
    assert stream.changes == [f"MODIFIED:{name}", f"DELETED:{name}"]
    assert [m["deletionGracePeriodSeconds"] for m in stream.metas] == [0, 0]
