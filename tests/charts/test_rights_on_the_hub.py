"""The Kubernetes rights of each component: no wildcard, no Secrets of the whole hub (rule S7)."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.support.kube_calls import Calls
from fleetbus_emulator.apiserver import Cluster, User
from support.api.rendered_chart import NAMESPACE, VALUES, Object, of_kind, render
from support.rows import each_row

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KUBECONFIGS = "fleetbus-clusters"
PLURALS = {
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}

OWN: list[tuple[str, str, str, str, str]] = [
    # component, verb, resource, namespace, name: what its code calls
    ("watcher-hub", "watch", "pods", "", ""),
    ("watcher-hub", "list", "deployments.apps", "", ""),
    ("watcher-hub", "list", "customresourcedefinitions.apiextensions.k8s.io", "", ""),
    ("watcher-hub", "list", "apiservices.apiregistration.k8s.io", "", ""),
    ("watcher-hub", "get", "namespaces", "", "kube-system"),
    ("pool", "watch", "clusters.fleetbus.dev", "", ""),
    ("pool", "list", "secrets", KUBECONFIGS, ""),
    ("reconciler-shop", "get", "clusters.fleetbus.dev", "", "eu1"),
    ("projector", "watch", "clusters.fleetbus.dev", "", ""),
    ("projector", "patch", "clusters.fleetbus.dev/status", "", "eu1"),
    ("projector", "watch", "secrets", KUBECONFIGS, ""),
    # Renewal of the tokens that `fleetbus join --bootstrap` made.
    ("projector", "get", "secrets", KUBECONFIGS, "eu1-kubeconfig"),
    ("projector", "patch", "secrets", KUBECONFIGS, "eu1-kubeconfig"),
    ("projector", "get", "secrets", NAMESPACE, "eu1-watcher"),
    ("projector", "patch", "secrets", NAMESPACE, "eu1-watcher"),
    ("projector", "delete", "configmaps", KUBECONFIGS, "left-eu1"),
    ("projector", "get", "namespaces", "", "kube-system"),
    ("distributor", "get", "multiclusterresources.fleetbus.dev", "shop", "web"),
    ("distributor", "patch", "multiclusterresources.fleetbus.dev", "shop", "web"),
    ("distributor", "update", "multiclusterresources.fleetbus.dev/status", "shop", "web"),
    ("distributor", "create", "events", "shop", ""),
    ("distributor", "get", "namespaces", "", "shop"),
    ("distributor", "list", "controllerrevisions.apps", "shop", ""),
    ("distributor", "get", "controllerrevisions.apps", "shop", "web-1"),
    ("distributor", "create", "controllerrevisions.apps", "shop", ""),
    ("distributor", "patch", "controllerrevisions.apps", "shop", "web-1"),
    ("distributor", "delete", "controllerrevisions.apps", "shop", "web-1"),
    ("distributor", "get", "clusters.fleetbus.dev", "", "eu1"),
    ("distributor", "list", "configmaps", KUBECONFIGS, ""),
    ("query-api", "create", "tokenreviews.authentication.k8s.io", "", ""),
    ("query-api", "create", "subjectaccessreviews.authorization.k8s.io", "", ""),
    ("reconciler-shop", "list", "configmaps", "shop", ""),
    ("reconciler-shop", "watch", "secrets", KUBECONFIGS, ""),
]
COMPONENTS = [
    *("watcher-hub", "watcher-eu1", "pool", "projector", "distributor", "query-api"),
    *("reconciler-shop", "nats", "valkey"),
]
FORBIDDEN: list[tuple[str, str, str, str]] = [
    ("list", "secrets", "", ""),
    ("get", "secrets", NAMESPACE, "fb-fleetbus-seed"),
    ("list", "secrets", NAMESPACE, ""),
    ("get", "secrets", "kube-system", ""),
    ("patch", "secrets", NAMESPACE, "fb-fleetbus-seed"),
    ("create", "secrets", KUBECONFIGS, ""),
    ("delete", "secrets", KUBECONFIGS, "eu1-kubeconfig"),
    ("create", "pods", NAMESPACE, ""),
    ("create", "pods/exec", NAMESPACE, "x"),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", "", ""),
    ("escalate", "clusterroles.rbac.authorization.k8s.io", "", ""),
    ("impersonate", "users", "", ""),
    ("delete", "multiclusterresources.fleetbus.dev", "shop", "web"),
    ("delete", "clusters.fleetbus.dev", "", "eu1"),
    ("create", "clusters.fleetbus.dev", "", ""),
    ("delete", "namespaces", "", "shop"),
    ("create", "serviceaccounts/token", NAMESPACE, "x"),
]


def hub_with(values: Object) -> Calls:
    """Make a hub with the rendered roles, that asks them."""
    cluster = Cluster(
        "hub", seed=1, tokens={"root": User("root", ("system:masters",))}, authorize="rbac"
    )
    calls = Calls(cluster)
    for namespace in (NAMESPACE, KUBECONFIGS, "shop"):
        calls.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}, bearer="root")
    for obj in of_kind(render(values), *PLURALS):
        namespace = obj["metadata"].get("namespace", "")
        place = f"{RBAC}/namespaces/{namespace}" if namespace else RBAC
        reply = calls.call("POST", f"{place}/{PLURALS[obj['kind']]}", obj, bearer="root")
        assert reply.status == 201, reply.message
    return calls


@pytest.fixture(scope="module")
def calls() -> Calls:
    return hub_with(VALUES["everything"])


def may(calls: Calls, component: str, verb: str, resource: str, namespace: str, name: str) -> bool:
    named, _, subresource = resource.partition("/")
    plural, _, group = named.partition(".")
    spec: dict[str, Any] = {
        "user": f"system:serviceaccount:{NAMESPACE}:fb-fleetbus-{component}",
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": {
            "verb": verb,
            "group": group,
            "resource": plural,
            "namespace": namespace,
            "name": name,
            "subresource": subresource,
        },
    }
    reply = calls.call("POST", REVIEWS, {"spec": spec}, bearer="root")
    assert reply.status == 201, reply.message
    return bool(reply.document["status"]["allowed"])


@each_row(("component", "verb", "resource", "namespace", "name"), OWN)
def test_s7_a_component_may_what_it_does(
    calls: Calls, component: str, verb: str, resource: str, namespace: str, name: str
):
    assert may(calls, component, verb, resource, namespace, name)


@each_row("component", COMPONENTS)
def test_s7_no_component_may_what_it_does_not(calls: Calls, component: str):
    """Nor does the query API, for a join (rule A7)."""
    assert [call for call in FORBIDDEN if may(calls, component, *call)] == []


def test_s7_only_who_needs_them_reads_kubeconfigs(calls: Calls):
    readers = [c for c in COMPONENTS if may(calls, c, "list", "secrets", KUBECONFIGS, "")]
    assert readers == ["pool", "projector", "distributor", "reconciler-shop"]


def test_a3_where_members_decide_the_query_api_finds_them_and_no_more():
    calls = hub_with(VALUES["members decide"])
    allowed = [
        ("list", "clusters.fleetbus.dev", "", ""),
        ("watch", "clusters.fleetbus.dev", "", ""),
        ("list", "secrets", KUBECONFIGS, ""),
        ("watch", "secrets", KUBECONFIGS, ""),
        ("get", "namespaces", "", "kube-system"),
        ("create", "tokenreviews.authentication.k8s.io", "", ""),
        ("create", "subjectaccessreviews.authorization.k8s.io", "", ""),
    ]
    assert [call for call in allowed if not may(calls, "query-api", *call)] == []
    more = [("list", "configmaps", KUBECONFIGS, ""), ("list", "pods", "", "")]
    assert [call for call in [*FORBIDDEN, *more] if may(calls, "query-api", *call)] == []


@each_row("values", VALUES.values())
def test_s7_no_rule_has_a_wildcard_or_cluster_wide_secrets(values: Object):
    for role in of_kind(render(values), "Role", "ClusterRole"):
        for rule in role["rules"]:
            words = [word for key in ("apiGroups", "resources", "verbs") for word in rule[key]]
            assert not [word for word in words if "*" in word], role["metadata"]["name"]
            if role["kind"] == "ClusterRole":
                assert "secrets" not in rule["resources"], role["metadata"]["name"]


@each_row("values", VALUES.values())
def test_every_binding_leads_to_a_role_and_a_service_account_of_the_release(values: Object):
    objects = render(values)
    accounts = {account["metadata"]["name"] for account in of_kind(objects, "ServiceAccount")}
    roles = {
        (role["kind"], role["metadata"]["name"]) for role in of_kind(objects, "Role", "ClusterRole")
    }
    for role_binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        assert (role_binding["roleRef"]["kind"], role_binding["roleRef"]["name"]) in roles
        assert {subject["name"] for subject in role_binding["subjects"]} <= accounts


def test_d16_the_distributor_impersonates_the_named_accounts_of_the_hub_and_no_others():
    calls = hub_with({"distributor": {"impersonate": ["shop/deployer"]}})
    named = [("shop", "deployer"), ("shop", "other"), (NAMESPACE, "deployer"), ("shop", "")]
    allowed = [
        may(calls, "distributor", "impersonate", "serviceaccounts", *account) for account in named
    ]
    assert allowed == [True, False, False, False]
    assert not may(calls, "projector", "impersonate", "serviceaccounts", "shop", "deployer")
