"""RBAC: access by the cluster's own Roles and bindings."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from emulator.support.auth_rig import ACCOUNTS, RBAC, Secured, secured, whoami
from emulator.support.kube_calls import APPLY, config_map, widget_definition
from fleetbus_emulator.apiserver import ApiError, Cluster, User
from fleetbus_emulator.apiserver.auth.roles import GROUP

ADMIN = User("root", ("system:masters",))
ANN = User("ann", ("devs",))
TOKENS: dict[str, str | User] = {"root": ADMIN, "ann": ANN}
NAMESPACE = "/api/v1/namespaces/default"
ROLES = f"/apis/{RBAC}/namespaces/default/roles"
BINDINGS = f"/apis/{RBAC}/namespaces/default/rolebindings"
CLUSTER_ROLES = f"/apis/{RBAC}/clusterroles"
CLUSTER_BINDINGS = f"/apis/{RBAC}/clusterrolebindings"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Secured]:
    async with secured(tmp_path, Cluster("one", tokens=TOKENS, authorize="rbac")) as rig:
        yield rig


def rule(verbs: str, resources: str, group: str = "", **more: Any) -> dict[str, Any]:
    lists = {"apiGroups": [group], "resources": resources.split()}
    return {"verbs": verbs.split(), **lists, **more}


def role(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "rules": list(rules)}


def binding(name: str, kind: str, *subjects: dict[str, str]) -> dict[str, Any]:
    ref = {"kind": kind, "name": name}
    return {"metadata": {"name": name}, "roleRef": ref, "subjects": list(subjects)}


def user(name: str) -> dict[str, str]:
    return {"kind": "User", "name": name}


def grant(cluster: Cluster, name: str, *rules: dict[str, Any]) -> None:
    """A Role in the namespace default for ann."""
    cluster.create(f"{RBAC}/roles", role(name, *rules), "default")
    cluster.create(f"{RBAC}/rolebindings", binding(name, "Role", user("ann")), "default")


def grant_everywhere(cluster: Cluster, name: str, *rules: dict[str, Any]) -> None:
    """A ClusterRole for ann."""
    if rules:
        cluster.create(f"{RBAC}/clusterroles", role(name, *rules))
    cluster.create(f"{RBAC}/clusterrolebindings", binding(name, "ClusterRole", user("ann")))


async def get(client: httpx.AsyncClient, path: str, **query: str) -> int:
    return (await client.get(path, params=query)).status_code


# refusals ----------------------------------------------------------------------------------------


CANNOT = 'is forbidden: User "ann" cannot'
EVERYWHERE = "at the cluster scope"
IN_SYSTEM = 'in the namespace "kube-system"'
IN_WEB = 'in the namespace "web"'
SCALE = "/apis/apps/v1/namespaces/web/deployments/d/scale"


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        (
            "GET",
            "/api/v1/pods",
            f'pods {CANNOT} list resource "pods" in API group "" {EVERYWHERE}',
        ),
        (
            "GET",
            "/api/v1/namespaces/web/pods/p/log",
            f'pods "p" {CANNOT} get resource "pods/log" in API group "" {IN_WEB}',
        ),
        (
            "PATCH",
            SCALE,
            f'deployments.apps "d" {CANNOT} patch resource "deployments/scale" in API group "apps" '
            + IN_WEB,
        ),
        (
            "DELETE",
            "/api/v1/nodes",
            f'nodes {CANNOT} deletecollection resource "nodes" in API group "" {EVERYWHERE}',
        ),
        (
            "GET",
            "/api/v1/namespaces/web",
            f'namespaces "web" {CANNOT} get resource "namespaces" in API group "" {IN_WEB}',
        ),
        (
            "POST",
            "/apis/example.com/v1/namespaces/web/toys",
            f'toys.example.com {CANNOT} create resource "toys" in API group "example.com" {IN_WEB}',
        ),
        ("GET", "/", 'forbidden: User "ann" cannot get path "/"'),
        ("POST", "/metrics", 'forbidden: User "ann" cannot post path "/metrics"'),
        ("GET", "/a&b", 'forbidden: User "ann" cannot get path "/a&amp;b"'),
    ],
)
async def test_a_refusal_says_who_may_not_do_what_where(
    rig: Secured, method: str, path: str, message: str
):
    reply = await rig.client("ann").request(method, path)
    assert (reply.status_code, reply.json()["reason"]) == (403, "Forbidden")
    assert reply.json()["message"] == message


async def test_a_refusal_names_the_role_that_is_missing(rig: Secured):
    grant_everywhere(rig.cluster, "gone")
    reply = await rig.client("ann").get("/api/v1/pods")
    assert reply.json()["message"].endswith(
        f'at the cluster scope: RBAC: clusterrole.{RBAC[:-3]} "gone" not found'
    )


# what rules allow --------------------------------------------------------------------------------


async def test_a_role_counts_in_its_namespace_and_a_clusterrole_everywhere(rig: Secured):
    ann = rig.client("ann")
    grant(rig.cluster, "reader", rule("get list watch", "configmaps"))
    assert await get(ann, f"{NAMESPACE}/configmaps") == 200
    assert await get(ann, "/api/v1/namespaces/kube-system/configmaps") == 403
    assert await get(ann, "/api/v1/configmaps") == 403
    assert (await ann.post(f"{NAMESPACE}/configmaps", json=config_map("a"))).status_code == 403
    grant_everywhere(rig.cluster, "lister", rule("list", "configmaps"))
    assert await get(ann, "/api/v1/configmaps") == 200
    bound = binding("lister", "ClusterRole", {"kind": "Group", "name": "devs"})
    rig.cluster.create(f"{RBAC}/rolebindings", bound, "default")
    assert await get(ann, "/api/v1/namespaces/kube-system/configmaps") == 200


async def test_a_rule_is_about_its_api_group_only(rig: Secured):
    ann = rig.client("ann")
    grant(rig.cluster, "core-events", rule("list", "events"))
    assert await get(ann, f"{NAMESPACE}/events") == 200
    other = "/apis/events.k8s.io/v1/namespaces/default/events"
    assert await get(ann, other) == 403
    grant(rig.cluster, "all-events", rule("list", "events", "*"))
    assert await get(ann, other) == 200


async def test_rights_come_and_go_with_the_write_that_gives_or_takes_them(rig: Secured):
    ann = rig.client("ann")
    path = f"{NAMESPACE}/configmaps"
    before = rig.cluster.resource_version
    grant(rig.cluster, "reader", rule("list", "configmaps"))
    assert await get(ann, path) == 200
    rules = {"rules": [rule("list", "secrets")]}
    rig.cluster.patch(f"{RBAC}/roles", "default", "reader", rules)
    assert (await get(ann, path), await get(ann, f"{NAMESPACE}/secrets")) == (403, 200)
    rig.cluster.roll_back(before)
    assert await get(ann, f"{NAMESPACE}/secrets") == 403


async def test_subresources_are_rights_of_their_own(rig: Secured):
    ann = rig.client("ann")
    rules = (rule("get", "pods/log */scale"), rule("get", "*/scale", "apps"))
    grant(rig.cluster, "reader", *rules)
    assert await get(ann, f"{NAMESPACE}/pods/p") == 403
    assert await get(ann, f"{NAMESPACE}/pods/p/log") == 404
    assert await get(ann, "/apis/apps/v1/namespaces/default/deployments/d/scale") == 404
    assert await get(ann, "/apis/apps/v1/namespaces/default/deployments/d/status") == 403
    grant(rig.cluster, "all", rule("get", "*"))
    assert await get(ann, f"{NAMESPACE}/pods/p/status") == 404


async def test_a_rule_may_name_objects_also_for_lists_that_select_one(rig: Secured):
    ann = rig.client("ann")
    only = rule("get list watch", "secrets", resourceNames=["c1"])
    grant(rig.cluster, "one-secret", only)
    path = f"{NAMESPACE}/secrets"
    assert (await get(ann, f"{path}/c1"), await get(ann, f"{path}/c2")) == (404, 403)
    assert await get(ann, path) == 403
    assert await get(ann, path, fieldSelector="metadata.name=c1") == 200
    assert await get(ann, path, fieldSelector="type==x,metadata.name==c1") == 200
    assert await get(ann, path, fieldSelector="metadata.name=c2") == 403
    async with ann.stream("GET", path, params={"watch": "1", "fieldSelector": "metadata.name=c1"}):
        assert rig.cluster.open_watches == 1


async def test_a_service_account_has_the_rights_bound_to_it(rig: Secured):
    rig.cluster.create("v1/serviceaccounts", {"metadata": {"name": "robot"}}, "default")
    robot = rig.client(rig.cluster.credentials.account_token("default", "robot"))
    assert await get(robot, f"{NAMESPACE}/pods") == 403
    subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
    bound = binding("view", "ClusterRole", subject)
    rig.cluster.create(f"{RBAC}/rolebindings", bound, "default")
    assert await get(robot, f"{NAMESPACE}/pods") == 200
    assert await get(robot, f"{NAMESPACE}/secrets") == 403


async def test_everybody_known_may_discover_and_ask_about_himself_and_nobody_only_see_health(
    rig: Secured,
):
    ann, nobody = rig.client("ann"), rig.client()
    for path in ("/api", "/apis", "/apis/apps/v1", "/openapi/v3", "/version", "/healthz"):
        assert await get(ann, path) == 200
    assert (await whoami(ann))["username"] == "ann"
    assert [await get(nobody, path) for path in ("/healthz", "/version", "/api")] == [200, 200, 403]


async def test_system_masters_may_everything_whatever_the_roles_say(rig: Secured):
    rig.cluster.delete(f"{RBAC}/clusterrolebindings", None, "cluster-admin")
    root = rig.client("root")
    assert (await get(root, "/api/v1/secrets"), await get(root, "/")) == (200, 200)


async def test_admin_edit_and_view_contain_each_other_and_what_is_aggregated_to_them(rig: Secured):
    ann = rig.client("ann")
    rig.cluster.create("apiextensions.k8s.io/v1/customresourcedefinitions", widget_definition())
    rig.cluster.create(
        f"{RBAC}/rolebindings", binding("edit", "ClusterRole", user("ann")), "default"
    )
    widgets = "/apis/example.com/v1/namespaces/default/widgets"
    assert await get(ann, f"{NAMESPACE}/pods") == 200
    assert (await ann.post(f"{NAMESPACE}/configmaps", json=config_map("a"))).status_code == 201
    assert await get(ann, ROLES) == 403
    assert await get(ann, widgets) == 403
    more = role("widget-viewer", rule("list", "widgets", "example.com"))
    more["metadata"]["labels"] = {f"{RBAC[:-3]}/aggregate-to-view": "true"}
    rig.cluster.create(f"{RBAC}/clusterroles", more)
    assert await get(ann, widgets) == 200
    for name in ("view", "edit", "admin"):
        found = rig.cluster.get(f"{RBAC}/clusterroles", None, name)
        assert found is not None
        assert more["rules"][0] in found["rules"]
    rig.cluster.delete(f"{RBAC}/clusterroles", None, "widget-viewer")
    assert await get(ann, widgets) == 403


async def test_an_apply_that_creates_needs_the_right_to_create(rig: Secured):
    ann = rig.client("ann")
    grant(rig.cluster, "patcher", rule("patch get", "configmaps"))
    path = f"{NAMESPACE}/configmaps/a"
    body = {"apiVersion": "v1", "kind": "ConfigMap", **config_map("a", x="1")}

    async def apply() -> httpx.Response:
        query = {"fieldManager": "m"}
        return await ann.patch(path, json=body, params=query, headers={"Content-Type": APPLY})

    refused = await apply()
    assert refused.status_code == 403
    assert refused.json()["message"].startswith('configmaps "a" is forbidden: ')
    rig.cluster.create("v1/configmaps", config_map("a"), "default")
    assert (await apply()).status_code == 200


async def test_acting_as_somebody_is_a_right_of_its_own(rig: Secured):
    ann = rig.client("ann")
    grant(rig.cluster, "actor", rule("impersonate", "serviceaccounts", resourceNames=["robot"]))
    account = "system:serviceaccount:{}:{}".format
    acting = await whoami(ann, **{"Impersonate-User": account("default", "robot")})
    assert acting["username"] == account("default", "robot")
    somebody = {"Impersonate-User": account("default", "robot")}
    for headers, subject, where in (
        ({"Impersonate-User": account("kube-system", "robot")}, "robot", IN_SYSTEM),
        ({"Impersonate-User": "bob"}, "bob", EVERYWHERE),
        ({**somebody, "Impersonate-Group": "system:masters"}, "system:masters", EVERYWHERE),
    ):
        refused = await ann.get(f"{NAMESPACE}/pods", headers=headers)
        assert refused.status_code == 403
        named, _, detail = refused.json()["message"].partition(" is forbidden: ")
        plural = named.partition(" ")[0]
        assert named == f'{plural} "{subject}"'
        assert detail == (
            f'User "ann" cannot impersonate resource "{plural}" in API group "" {where}'
        )
    # What the account may not do, whoever acts as it may not either.
    refused = await ann.get(f"{NAMESPACE}/pods", headers=somebody)
    assert refused.json()["message"].startswith(
        'pods is forbidden: User "system:serviceaccount:default:robot" cannot list'
    )


# giving rights away ------------------------------------------------------------------------------


async def manager_of_roles(rig: Secured, *verbs: str) -> httpx.AsyncClient:
    everything = rule(
        " ".join(("create get update patch", *verbs)), "roles rolebindings", RBAC[:-3]
    )
    grant(rig.cluster, "manager", everything, rule("get list", "configmaps"))
    return rig.client("ann")


async def test_nobody_gives_away_rights_that_he_does_not_have(rig: Secured):
    ann = await manager_of_roles(rig)
    mine = role("mine", rule("get", "configmaps"))
    assert (await ann.post(ROLES, json=mine)).status_code == 201
    more = role("more", rule("get list delete", "configmaps"), rule("get", "secrets"))
    refused = await ann.post(ROLES, json=more)
    assert refused.status_code == 403
    assert refused.json()["message"] == (
        'roles.rbac.authorization.k8s.io "more" is forbidden: user "ann" (groups=["devs" '
        '"system:authenticated"]) is attempting to grant RBAC permissions not currently held:\n'
        '{APIGroups:[""], Resources:["configmaps"], Verbs:["delete"]}\n'
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    )
    wider = {"rules": more["rules"]}
    headers = {"Content-Type": "application/merge-patch+json"}
    assert (await ann.patch(f"{ROLES}/mine", json=wider, headers=headers)).status_code == 403
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert (await ann.patch(f"{ROLES}/mine", json=labels, headers=headers)).status_code == 200


async def test_nobody_binds_a_role_that_is_more_than_he_has(rig: Secured):
    ann = await manager_of_roles(rig)
    refused = await ann.post(BINDINGS, json=binding("cluster-admin", "ClusterRole", user("ann")))
    assert refused.status_code == 403
    assert refused.json()["message"].endswith(
        "is attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}\n'
        '{NonResourceURLs:["*"], Verbs:["*"]}'
    )
    missing = await ann.post(BINDINGS, json=binding("gone", "ClusterRole", user("ann")))
    assert missing.status_code == 404
    rig.cluster.create(f"{RBAC}/roles", role("same", rule("list", "configmaps")), "default")
    granted = await ann.post(BINDINGS, json=binding("same", "Role", user("bob")))
    assert granted.status_code == 201


async def test_a_right_to_one_object_is_none_to_give_all_of_them(rig: Secured):
    ann = await manager_of_roles(rig)
    grant(rig.cluster, "one", rule("get", "secrets", resourceNames=["c1"]))
    assert (await ann.post(ROLES, json=role("a", rule("get", "secrets")))).status_code == 403
    named = role("a", rule("get", "secrets", resourceNames=["c1", "c2"]))
    refused = await ann.post(ROLES, json=named)
    missing = '{APIGroups:[""], Resources:["secrets"], ResourceNames:["c2"], Verbs:["get"]}'
    assert refused.json()["message"].endswith(f"not currently held:\n{missing}")
    named["rules"][0]["resourceNames"] = ["c1"]
    assert (await ann.post(ROLES, json=named)).status_code == 201


async def test_the_verbs_escalate_and_bind_allow_to_give_more_than_one_has(rig: Secured):
    ann = await manager_of_roles(rig, "escalate", "bind")
    more = role("more", rule("get", "secrets"))
    assert (await ann.post(ROLES, json=more)).status_code == 201
    assert (await ann.post(BINDINGS, json=binding("more", "Role", user("bob")))).status_code == 201
    refused = await ann.post(BINDINGS, json=binding("cluster-admin", "ClusterRole", user("bob")))
    assert refused.status_code == 403


async def test_aggregation_is_for_those_who_may_everything(rig: Secured):
    grant_everywhere(rig.cluster, "manager", rule("create", "clusterroles", RBAC[:-3]))
    selector = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
    body = {"metadata": {"name": "sum"}, "aggregationRule": selector}
    refused = await rig.client("ann").post(CLUSTER_ROLES, json=body)
    assert refused.json()["message"] == (
        'clusterroles.rbac.authorization.k8s.io "sum" is forbidden: must have cluster-admin '
        "privileges to use aggregationRules"
    )
    assert (await rig.client("root").post(CLUSTER_ROLES, json=body)).status_code == 201


# the objects -------------------------------------------------------------------------------------


async def test_a_binding_gets_its_api_groups_and_keeps_its_role(rig: Secured):
    root = rig.client("root")
    bound = await root.post(BINDINGS, json=binding("view", "ClusterRole", user("ann")))
    assert bound.json()["roleRef"]["apiGroup"] == "rbac.authorization.k8s.io"
    assert bound.json()["subjects"][0]["apiGroup"] == "rbac.authorization.k8s.io"
    other = {"roleRef": {"name": "edit"}}
    headers = {"Content-Type": "application/merge-patch+json"}
    refused = await root.patch(f"{BINDINGS}/view", json=other, headers=headers)
    assert refused.status_code == 422
    assert refused.json()["message"] == (
        'RoleBinding.rbac.authorization.k8s.io "view" is invalid: roleRef: Invalid value: '
        'rbac.RoleRef{APIGroup:"rbac.authorization.k8s.io", Kind:"ClusterRole", Name:"edit"}: '
        "cannot change roleRef"
    )


async def test_a_role_or_binding_without_sense_is_422(rig: Secured):
    root = rig.client("root")
    bad_rule = {"nonResourceURLs": ["/a"]}
    reply = await root.post(ROLES, json=role("a", bad_rule, {"verbs": ["get"]}))
    assert [cause["field"] for cause in reply.json()["details"]["causes"]] == [
        "rules[0].verbs",
        "rules[0].nonResourceURLs",
        "rules[1].apiGroups",
        "rules[1].resources",
    ]
    subjects = ({"kind": "Robot", "name": "r"}, {"kind": "ServiceAccount", "name": "s"})
    reply = await root.post(CLUSTER_BINDINGS, json=binding("a", "Role", *subjects))
    assert {cause["field"]: cause["message"] for cause in reply.json()["details"]["causes"]} == {
        "roleRef.kind": 'Unsupported value: "Role": supported values: "ClusterRole"',
        "subjects[0].kind": 'Unsupported value: "Robot": supported values: "ServiceAccount", '
        '"User", "Group"',
        "subjects[1].namespace": "Required value",
    }


async def test_a_token_of_an_account_needs_a_right_of_its_own(rig: Secured):
    rig.cluster.create("v1/serviceaccounts", {"metadata": {"name": "robot"}}, "default")
    ann = rig.client("ann")
    grant(rig.cluster, "creator", rule("create get", "serviceaccounts"))
    assert (await ann.post(f"{ACCOUNTS}/robot/token", json={})).status_code == 403
    grant(rig.cluster, "giver", rule("create", "serviceaccounts/token"))
    assert (await ann.post(f"{ACCOUNTS}/robot/token", json={})).status_code == 201


def test_only_rbac_is_known_by_name():
    with pytest.raises(ValueError, match="rbac"):
        Cluster("one", authorize="abac")  # pyright: ignore[reportArgumentType]


def test_in_process_calls_are_not_asked_who_they_are():
    cluster = Cluster("one", tokens=TOKENS, authorize="rbac")
    cluster.create("v1/secrets", {"metadata": {"name": "a"}}, "default")
    with pytest.raises(ApiError, match="already exists"):
        cluster.create("v1/secrets", {"metadata": {"name": "a"}}, "default")


def test_roles_that_select_each_other_come_to_rest():
    cluster = Cluster("alpha", authorize="rbac")
    roles = f"{GROUP}/v1/clusterroles"
    for name, selected in (("a", ["b", "leaf"]), ("b", ["c"]), ("c", ["a"])):
        selectors = [{"matchLabels": {"is": label}} for label in selected]
        cluster.create(
            roles,
            {
                "metadata": {"name": name, "labels": {"is": name}},
                "aggregationRule": {"clusterRoleSelectors": selectors},
                "rules": [{"verbs": [name], "apiGroups": [""], "resources": ["pods"]}],
            },
        )
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
    leaf = {"metadata": {"name": "z", "labels": {"is": "leaf"}}, "rules": [rule]}
    cluster.create(roles, leaf)
    for name in ("a", "b", "c"):
        found = cluster.get(roles, None, name)
        assert found is not None
        assert found["rules"] == [rule]
