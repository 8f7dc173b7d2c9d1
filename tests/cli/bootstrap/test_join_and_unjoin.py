"""`fleetbus join --bootstrap` and `unjoin --file` against emulated clusters with RBAC."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from fleetbus.clusters.leaving import LEFT_LABEL
from fleetbus.clusters.member_rights import WATCHER, WRITER
from fleetbus_cli.bootstrap.accounts import PLACES, Place
from fleetbus_emulator.apiserver import Fail, User

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver import Rule
    from fleetbus_emulator.emulated_cluster import EmulatedCluster
    from fleetbus_emulator.fleet import EmulatedFleet

Call = Callable[..., tuple[int, str, str]]
CLUSTERS = "fleetbus.dev/v1alpha1/clusters"
ADMIN = "admin-token-of-the-test"
POOR = "token-of-one-without-rights"

pytestmark = pytest.mark.fleet(
    ["hub", "eu1"],
    workloads=False,
    tokens={ADMIN: User("root", ("system:masters",)), POOR: "ada"},
    authorize="rbac",
)


@pytest.fixture
def call(call: Call, hub: EmulatedCluster) -> Call:
    """The command; nothing that it prints or logs may have a token in it."""

    def call_one(*arguments: str) -> tuple[int, str, str]:
        status, out, err = call(*arguments)
        tokens = [
            ADMIN,
            POOR,
            *(
                token_in(secret_object)
                for secret_object in hub.list("v1/secrets")
                if data_of(secret_object)
            ),
        ]
        assert not [token for token in tokens if token in out + err]
        return status, out, err

    return call_one


def join(call: Call, fleet: EmulatedFleet, *more: str) -> tuple[int, str, str]:
    options = ("--file", str(fleet.kubeconfig), "--context", "eu1", "--bootstrap")
    return call("join", "eu1", *options, *more)


def unjoin(call: Call, fleet: EmulatedFleet) -> tuple[int, str, str]:
    return call("unjoin", "eu1", "--file", str(fleet.kubeconfig), "--context", "eu1")


def data_of(secret: dict[str, Any]) -> str:
    return str((secret.get("data") or {"kubeconfig": ""}).get("kubeconfig", ""))


def token_in(secret: dict[str, Any]) -> str:
    return json.loads(base64.b64decode(data_of(secret)))["users"][0]["user"]["token"]


def secret_of(hub: EmulatedCluster, account: str) -> dict[str, Any]:
    place = (
        ("fleetbus", "eu1-watcher")
        if account == WATCHER
        else ("fleetbus-clusters", "eu1-kubeconfig")
    )
    obj = hub.get("v1/secrets", *place)
    assert obj is not None
    return obj


def status_of(member: EmulatedCluster, token: str, path: str, method: str = "GET") -> int:
    head = {"Authorization": f"Bearer {token}"}
    body = {"metadata": {"name": "x"}} if method == "POST" else None
    return httpx.request(method, f"{member.url}{path}", headers=head, json=body).status_code


def made(member: EmulatedCluster) -> list[str]:
    return [str(place) for place in PLACES if exists(member, place)]


def exists(member: EmulatedCluster, place: Place) -> bool:
    return member.get(str(place.resource), place.namespace or None, place.name) is not None


DEPLOYMENTS = "/apis/apps/v1/deployments"
PODS = "/api/v1/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.slow
def test_s7_each_account_may_do_what_was_named_and_nothing_else(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    named = ("--watch", "pods", "--watch", "apps/v1/deployments", "--write", "configmaps")
    status, out, err = join(call, fleet, *named, "-l", "region=eu")
    assert (status, err) == (0, "")
    watcher, writer = (token_in(secret_of(hub, account)) for account in (WATCHER, WRITER))
    member = fleet["eu1"]
    for path, of_watcher, of_writer in [
        (PODS, 200, 403),
        (DEPLOYMENTS, 200, 403),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", 200, 403),
        ("/api/v1/namespaces/kube-system", 200, 200),
        ("/api/v1/namespaces", 403, 403),
        ("/api/v1/secrets", 403, 403),
        ("/api/v1/nodes", 403, 403),
        (MAPS, 403, 200),
        ("/version", 200, 200),
    ]:
        assert status_of(member, watcher, path) == of_watcher, path
        assert status_of(member, writer, path) == of_writer, path
    for path, of_watcher, of_writer in [
        (MAPS, 403, 201),
        ("/api/v1/namespaces/default/pods", 403, 403),
        ("/api/v1/namespaces/default/secrets", 403, 403),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", 403, 403),
        ("/api/v1/namespaces/fleetbus-system/serviceaccounts/fleetbus-writer/token", 403, 201),
        ("/api/v1/namespaces/fleetbus-system/serviceaccounts/fleetbus-watcher/token", 201, 403),
        ("/api/v1/namespaces/kube-system/serviceaccounts/default/token", 403, 403),
    ]:
        body_less = path.endswith("/token")
        statuses = [
            token_request(member, t, path) if body_less else status_of(member, t, path, "POST")
            for t in (watcher, writer)
        ]
        assert statuses == [of_watcher, of_writer], path
    cluster = hub.get(CLUSTERS, None, "eu1") or {}
    assert cluster["spec"]["resources"] == ["apps/v1/deployments", "v1/pods"]
    assert cluster["metadata"]["labels"] == {"region": "eu", "fleetbus.dev/watcher": "dedicated"}
    assert "fleetbus-watcher --cluster eu1" in out
    assert "only then is the watcher's token renewed" in out


def token_request(member: EmulatedCluster, token: str, path: str) -> int:
    head = {"Authorization": f"Bearer {token}"}
    body: dict[str, Any] = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {},
    }
    return httpx.post(f"{member.url}{path}", headers=head, json=body).status_code


def test_the_values_are_those_of_the_chart(call: Call, fleet: EmulatedFleet):
    status, out, _ = join(call, fleet, "--watch", "pods", "--watch", "secrets", "-o", "yaml")
    assert status == 0
    assert yaml.safe_load(out)["values"] == {
        "watchers": {
            "clusters": [
                {
                    "name": "eu1",
                    "kubeconfigSecret": {"name": "eu1-watcher"},
                    "watch": {"resources": ["v1/pods", "v1/secrets"], "secrets": True},
                }
            ]
        }
    }


def test_all_that_is_served_is_named_and_neither_secrets_nor_wildcards(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    assert join(call, fleet)[0] == 0
    roles = "rbac.authorization.k8s.io/v1/clusterroles"
    rules = [
        rule
        for name in (WATCHER, WRITER)
        for rule in (fleet["eu1"].get(roles, None, name) or {})["rules"]
    ]
    named = {resource for rule in rules for resource in rule["resources"]}
    assert {"pods", "deployments"} <= named
    assert not {"secrets", "events", "leases"} & named
    assert "*" not in json.dumps(rules)
    watched = (hub.get(CLUSTERS, None, "eu1") or {})["spec"]["resources"]
    assert "apps/v1/deployments" in watched
    assert not [gvr for gvr in watched if "*" in gvr]


def test_a_second_join_repairs_and_keeps_what_was_chosen(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    join(call, fleet, "--watch", "pods", "--write", "configmaps", "--lifetime", "1h")
    member, before = fleet["eu1"], secret_of(hub, WRITER)
    roles = "rbac.authorization.k8s.io/v1/clusterroles"
    member.patch(roles, None, WATCHER, {"rules": []})
    member.delete("rbac.authorization.k8s.io/v1/clusterrolebindings", None, WRITER)
    hub.delete("v1/secrets", "fleetbus", "eu1-watcher")
    assert join(call, fleet)[::2] == (0, "")
    watcher, writer = (token_in(secret_of(hub, account)) for account in (WATCHER, WRITER))
    assert status_of(member, watcher, PODS) == 200
    assert status_of(member, watcher, DEPLOYMENTS) == 403
    assert status_of(member, writer, MAPS) == 200
    assert secret_of(hub, WRITER)["metadata"]["uid"] == before["metadata"]["uid"]
    join(call, fleet, "--watch", "pods", "--watch", "deployments", "--read-only")
    assert status_of(member, watcher, DEPLOYMENTS) == 200
    assert status_of(member, writer, MAPS) == 403


def test_the_pool_gets_one_account_with_both_roles(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    join(call, fleet, "--watch", "pods")
    old = token_in(secret_of(hub, WATCHER))
    status, out, _ = join(call, fleet, "--pool", "--write", "configmaps")
    assert (status, "the pool watches the cluster" in out) == (0, True)
    writer = token_in(secret_of(hub, WRITER))
    assert status_of(fleet["eu1"], writer, PODS) == 200
    assert status_of(fleet["eu1"], writer, MAPS) == 200
    assert status_of(fleet["eu1"], old, PODS) == 401  # its account is gone
    assert hub.get("v1/secrets", "fleetbus", "eu1-watcher") is None
    assert "fleetbus.dev/watcher" not in (hub.get(CLUSTERS, None, "eu1") or {})["metadata"].get(
        "labels", {}
    )


BAD_OPTIONS = [
    (("--watch", "pdos"), "the cluster does not serve 'pdos'"),
    (("--write", "*"), "'*' cannot be written"),
    (("--write", "v1/pods/exec"), "pods/exec"),
    (("--watch", "componentstatuses"), "componentstatuses"),
    (("--lifetime", "5m"), "10 minutes"),
    (("--lifetime", "soon"), "--lifetime 'soon' is not a duration"),
    (("--server", "https://169.254.169.254"), "--server gives the address"),
    (("--write", "pods", "--read-only"), "contradict"),
    (("--impersonate", "shop/deployer", "--read-only"), "contradict"),
    (("--impersonate", "deployer"), "'deployer' is not the NAMESPACE/NAME of a ServiceAccount"),
    (("--impersonate", "missing/deployer"), "cannot create Role missing/fleetbus-impersonator"),
    (("-o", "wide"), "--output 'wide'"),
]


def test_bad_options_change_nothing(call: Call, fleet: EmulatedFleet, hub: EmulatedCluster):
    for more, message in BAD_OPTIONS:
        status, out, err = join(call, fleet, *more)
        assert (status != 0, out) == (True, ""), more
        assert message in err
        assert "Traceback" not in err
    assert made(fleet["eu1"]) == []
    assert hub.list(CLUSTERS) == []


def test_options_of_a_bootstrap_are_refused_without_it(call: Call, fleet: EmulatedFleet):
    options = ("--file", str(fleet.kubeconfig), "--context", "eu1")
    status, _, err = call("join", "eu1", *options, "--watch", "pods")
    assert (status != 0, "--watch needs --bootstrap" in err) == (True, True)


def test_an_administrator_without_rights_learns_which_before_anything_is_made(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster, tmp_path: Path
):
    poor = tmp_path / "poor"
    fleet.write_kubeconfig(poor, POOR)
    member = fleet["eu1"]
    give(member, [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}])
    options = ("--file", str(poor), "--context", "eu1", "--bootstrap", "--watch", "pods")
    status, _, err = call("join", "eu1", *options)
    assert status != 0
    assert "lacks rights" in err
    assert "create clusterroles.rbac.authorization.k8s.io" in err
    assert (made(member), hub.list(CLUSTERS)) == ([], [])
    # Who may make roles, but not with rights that he does not have.
    everything = {
        "apiGroups": ["", "rbac.authorization.k8s.io"],
        "verbs": ["get", "create", "patch"],
    }
    plurals = [
        "namespaces",
        "serviceaccounts",
        "serviceaccounts/token",
        "roles",
        "rolebindings",
        "clusterroles",
        "clusterrolebindings",
    ]
    give(member, [everything | {"resources": plurals}])
    status, _, err = call("join", "eu1", *options)
    assert status != 0
    assert "cannot create ClusterRole fleetbus-watcher" in err
    assert (made(member), hub.list(CLUSTERS)) == ([], [])


def test_a_hub_without_the_namespace_of_the_release_is_named_before_anything_is_made(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    options = (
        "--file",
        str(fleet.kubeconfig),
        "--context",
        "eu1",
        "--bootstrap",
        "--watch",
        "pods",
    )
    status, _, err = call("join", "eu1", *options, "--release-namespace", "elsewhere")
    assert status != 0
    assert "kubectl create namespace elsewhere" in err
    assert (made(fleet["eu1"]), hub.list(CLUSTERS)) == ([], [])


def give(member: EmulatedCluster, rules: list[dict[str, Any]]) -> None:
    group = "rbac.authorization.k8s.io/v1"
    for kind in ("clusterroles", "clusterrolebindings"):
        if member.get(f"{group}/{kind}", None, "poor"):
            member.delete(f"{group}/{kind}", None, "poor")
    member.create(f"{group}/clusterroles", {"metadata": {"name": "poor"}, "rules": rules})
    ref = {"kind": "ClusterRole", "name": "poor", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"}
    body = {"metadata": {"name": "poor"}, "roleRef": ref, "subjects": [subject]}
    member.create(f"{group}/clusterrolebindings", body)


def test_w13_another_cluster_behind_the_name_is_refused(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    join(call, fleet, "--watch", "pods")
    options = ("--file", str(fleet.kubeconfig), "--context", "hub")
    status, _, err = call("join", "eu1", *options, "--bootstrap")
    assert (status != 0, "is taken: another cluster has it" in err) == (True, True)
    assert "fleetbus clusters accept eu1" in err
    status, _, err = call("unjoin", "eu1", *options)
    assert (status != 0, "another cluster answers" in err) == (True, True)
    assert made(hub) == []
    assert hub.get(CLUSTERS, None, "eu1") is not None


def test_what_others_made_is_neither_replaced_nor_deleted(call: Call, fleet: EmulatedFleet):
    member = fleet["eu1"]
    roles = "rbac.authorization.k8s.io/v1/clusterroles"
    member.create(roles, {"metadata": {"name": WRITER}, "rules": []})
    status, _, err = join(call, fleet, "--watch", "pods")
    assert (status != 0, f"ClusterRole {WRITER} exists" in err) == (True, True)
    assert made(member) == [f"ClusterRole {WRITER}"]
    member.delete(roles, None, WRITER)
    member.create("v1/namespaces", {"metadata": {"name": "fleetbus-system"}})
    assert join(call, fleet, "--watch", "pods")[0] == 0
    assert unjoin(call, fleet)[0] == 0
    assert made(member) == ["Namespace fleetbus-system"]


@pytest.mark.slow
def test_d16_the_writer_impersonates_named_accounts_until_they_are_no_longer_named(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    member = fleet["eu1"]
    for namespace in ("shop", "mail"):
        member.create("v1/namespaces", {"metadata": {"name": namespace}})
    named = [
        f"--impersonate={account}" for account in ("shop/deployer", "shop/other", "mail/deployer")
    ]
    status, out, err = join(call, fleet, "--watch", "pods", *named)
    assert (status, err) == (0, "")
    assert "impersonated: mail/deployer, shop/deployer, shop/other" in out
    watcher, writer = (token_in(secret_of(hub, account)) for account in (WATCHER, WRITER))

    def may(token: str, account: str) -> bool:
        """Whom the server does not let in at all it names as the user that is refused."""
        head = {"Authorization": f"Bearer {token}"}
        head["Impersonate-User"] = f"system:serviceaccount:{account.replace('/', ':')}"
        reply = httpx.get(f"{member.url}{MAPS}", headers=head).json()
        return "cannot impersonate" not in reply["message"]

    accounts = ("shop/deployer", "shop/other", "mail/deployer", "mail/other", "default/deployer")
    assert [may(writer, account) for account in accounts] == [True, True, True, False, False]
    assert [may(watcher, account) for account in accounts] == [False] * 5
    join(call, fleet)  # keeps them
    assert [may(writer, account) for account in accounts] == [True, True, True, False, False]
    join(call, fleet, "--impersonate", "shop/other")
    assert [may(writer, account) for account in accounts] == [False, True, False, False, False]
    status, out, _ = unjoin(call, fleet)
    assert (status, "RoleBinding shop/fleetbus-impersonator" in out) == (0, True)
    for plural in ("roles", "rolebindings"):
        assert member.list(f"rbac.authorization.k8s.io/v1/{plural}", "shop") == []


def test_t20_unjoin_removes_all_that_join_made(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    join(call, fleet, "--watch", "pods", "--write", "configmaps")
    tokens = [token_in(secret_of(hub, account)) for account in (WATCHER, WRITER)]
    assert len(made(fleet["eu1"])) == len(PLACES)
    status, out, err = unjoin(call, fleet)
    assert (status, err) == (0, "")
    assert "deleted on it: Namespace fleetbus-system" in out
    assert made(fleet["eu1"]) == []
    assert [status_of(fleet["eu1"], token, PODS) for token in tokens] == [401, 401]
    assert [
        secret_object for secret_object in hub.list("v1/secrets") if data_of(secret_object)
    ] == []
    assert hub.get(CLUSTERS, None, "eu1") is None
    assert len(hub.list("v1/configmaps", "fleetbus-clusters", LEFT_LABEL)) == 1
    status, _, err = unjoin(call, fleet)
    assert (status != 0, "not in the fleet" in err) == (True, True)


def test_d10_a_namespace_with_other_objects_stays(call: Call, fleet: EmulatedFleet):
    join(call, fleet, "--watch", "pods")
    mine = {"metadata": {"name": "mine", "namespace": "fleetbus-system"}}
    fleet["eu1"].create("v1/configmaps", mine)
    status, out, _ = unjoin(call, fleet)
    assert (status, "kept: namespace fleetbus-system" in out) == (0, True)
    assert "configmaps mine" in out
    assert made(fleet["eu1"]) == ["Namespace fleetbus-system"]


def test_unjoin_without_access_says_what_is_left_and_can_be_finished(
    call: Call, fleet: EmulatedFleet
):
    join(call, fleet, "--watch", "pods")
    status, out, _ = call("unjoin", "eu1")
    assert status == 0
    assert "kubectl delete serviceaccount fleetbus-writer -n fleetbus-system" in out
    assert len(made(fleet["eu1"])) == len(PLACES)
    assert unjoin(call, fleet)[0] == 0
    assert made(fleet["eu1"]) == []


@pytest.mark.parametrize("where", ["eu1", "hub"])
def test_runs_that_were_cut_off_are_finished_by_the_next(
    call: Call, fleet: EmulatedFleet, fault: Callable[..., Rule], where: str
):
    writes = {"eu1": "rbac.authorization.k8s.io/v1/rolebindings", "hub": CLUSTERS}
    rule = fault(where, Fail(503), resource=writes[where].rpartition("/")[2], verb="write")
    status, _, err = join(call, fleet, "--watch", "pods")
    assert (status != 0, "made so far: " in err) == (True, True)
    rule.remove()
    assert join(call, fleet, "--watch", "pods")[0] == 0
    fault("eu1", Fail(503), resource="serviceaccounts", verb="delete", count=1)
    status, _, err = unjoin(call, fleet)
    assert (status != 0, "deleted so far: " in err) == (True, True)
    assert unjoin(call, fleet)[0] == 0
    assert made(fleet["eu1"]) == []
