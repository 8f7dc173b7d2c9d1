"""charts/fleetbus-agent: what it makes, with which rights, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetbus.agents.nkeys import make_seed
from fleetbus.kube.unwatched_types import DENIED, SECRETS
from fleetbus_agent.settings import AgentSettings
from fleetbus_emulator.apiserver.auth.bootstrap_roles import bootstrap_objects
from reference.agent_manifest import CHART, render_agent
from support.api.conformance_client import Api
from support.api.conformance_server import emulated
from support.api.rbac import Call, allows, grants_to
from support.api.rendered_chart import Object, find, helm
from support.api.served_types import types_with
from support.rows import each_row

SEED = make_seed()
LEAST: Object = {
    "cluster": "eu7",
    "nats": {"url": "tls://nats.example.com:4222"},
    "registration": {"seed": SEED},
}
NAME = "fleetbus-agent"


def environment(objects: list[Object], container: str) -> dict[str, Any]:
    pod = find(objects, "Deployment", NAME)["spec"]["template"]["spec"]
    (found,) = [each for each in pod["containers"] if each["name"] == container]
    return {entry["name"]: entry.get("value") for entry in found["env"]}


def rights(objects: list[Object]) -> set[tuple[str, str, str]]:
    """Kind, namespace and role of each binding."""
    return {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["roleRef"]["name"])
        for obj in objects
        if obj["kind"].endswith("RoleBinding")
    }


def test_s7_by_default_the_agent_reads_and_sees_no_secret_but_its_own():
    objects = render_agent(LEAST)
    assert rights(objects) == {
        ("RoleBinding", NAME, NAME),
        ("ClusterRoleBinding", "", f"{NAME}:{NAME}"),
        ("ClusterRoleBinding", "", "view"),  # which has no Secrets
    }
    assert find(objects, "Role", NAME)["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": [f"{NAME}-nkey"],
            "verbs": ["get", "patch"],
        }
    ]
    for rule in find(objects, "ClusterRole", f"{NAME}:{NAME}")["rules"]:
        assert set(rule["verbs"]) == {"get", "list", "watch"}
        assert "secrets" not in rule["resources"]
        assert "*" not in rule["resources"] + rule["apiGroups"]
    assert environment(objects, "agent")["FLEETBUS_AGENT_READ_ONLY"] == "true"


def test_the_owner_chooses_where_the_hub_may_write():
    access: Object = {"mode": "namespaces", "namespaces": ["shop"], "impersonate": ["shop/cd"]}
    objects = render_agent({**LEAST, "access": access})
    added = rights(objects) - rights(render_agent(LEAST))
    assert added == {
        ("RoleBinding", "shop", "edit"),
        ("RoleBinding", "shop", f"{NAME}:{NAME}:cd"),
    }
    assert environment(objects, "agent")["FLEETBUS_AGENT_READ_ONLY"] == "false"
    full = rights(render_agent({**LEAST, "access": {"mode": "full"}}))
    assert ("ClusterRoleBinding", "", "cluster-admin") in full


def test_no_upgrade_changes_the_role_of_a_binding():
    """An API server refuses that."""
    roles: dict[tuple[str, str, str], str] = {}
    for access in (
        {"mode": "readOnly"},
        {"mode": "namespaces", "namespaces": ["shop"], "impersonate": ["shop/admin"]},
        {"mode": "namespaces", "namespaces": ["shop"], "role": "admin"},
        {"mode": "full"},
    ):
        for obj in render_agent({**LEAST, "access": access}):
            if obj["kind"].endswith("RoleBinding"):
                metadata, role = obj["metadata"], obj["roleRef"]["name"]
                place = (obj["kind"], metadata.get("namespace", ""), metadata["name"])
                assert roles.setdefault(place, role) == role, place


def test_the_watcher_watches_what_it_may_read_and_reports_no_other_type():
    objects = render_agent(LEAST)
    cluster_role = find(objects, "ClusterRole", f"{NAME}:{NAME}")
    roles = {o["metadata"]["name"]: o for plural, o in bootstrap_objects() if "roles" in plural}
    view = roles["system:aggregate-to-view"]
    grants = grants_to("agent", [*cluster_role["rules"], *view["rules"]])
    denied: list[str] = json.loads(environment(objects, "watcher")["FLEETBUS_WATCHER_DENY"])
    assert set(denied) > set(DENIED)
    with emulated(controllers=False) as server:
        api = Api(server)
        served = types_with(api, "list", "watch")
        api.http.close()
    refused = [
        key
        for key in {*served} - {*denied, SECRETS}
        for group, _, plural in [key.partition("/")]
        if not allows(grants, Call("agent", "list", "" if group == "core" else group, plural))
    ]
    assert refused == []
    full = render_agent({**LEAST, "access": {"mode": "full"}})
    assert json.loads(environment(full, "watcher")["FLEETBUS_WATCHER_DENY"]) == [*DENIED]
    mine = render_agent({**LEAST, "watch": {"deny": ["core/events"]}})
    assert json.loads(environment(mine, "watcher")["FLEETBUS_WATCHER_DENY"]) == ["core/events"]


def test_its_settings_are_those_of_the_agent(monkeypatch: pytest.MonkeyPatch):
    policy = {"allow": ["get,list,watch:*"], "deny": ["*:core/secrets", "delete:*"]}
    found = environment(render_agent({**LEAST, "policy": policy}), "agent")
    for name, value in found.items():
        if name.startswith("FLEETBUS_AGENT_"):
            monkeypatch.setenv(name, value)
    settings = AgentSettings()  # pyright: ignore[reportCallIssue]
    assert settings.cluster == "eu7"
    assert settings.secret == f"{NAME}/{NAME}-nkey"
    assert settings.allow == tuple(policy["allow"])
    assert settings.deny == tuple(policy["deny"])
    assert settings.rotation.days == 30
    known = {f"FLEETBUS_AGENT_{name.upper()}" for name in AgentSettings.model_fields}
    assert {name for name in found if name.startswith("FLEETBUS_AGENT_")} <= known


def test_s9_the_pod_may_do_as_little_as_possible():
    objects = render_agent(
        {**LEAST, "nats": {**LEAST["nats"], "ca": "-----BEGIN CERTIFICATE-----\nA"}}
    )
    pod = find(objects, "Deployment", NAME)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert SEED not in json.dumps(container)
    policy = find(objects, "NetworkPolicy", NAME)["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    # An upgrade leaves the nkey: the chart has no data for it.
    assert "data" not in find(objects, "Secret", f"{NAME}-nkey")


def test_a_new_join_starts_the_agent_anew_and_nothing_else_does():
    def template(values: Object) -> Any:
        return find(render_agent(values), "Deployment", NAME)["spec"]["template"]

    assert template(LEAST) == template(LEAST)
    other = {**LEAST, "registration": {"seed": make_seed()}}
    assert template(other)["metadata"] != template(LEAST)["metadata"]
    given = {**LEAST, "registration": {"secretName": "mine"}}
    (volume,) = [v for v in template(given)["spec"]["volumes"] if v["name"] == "registration"]
    assert volume["secret"]["secretName"] == "mine"


@each_row(
    ("values", "message"),
    [
        ({**LEAST, "cluster": "EU 7"}, "/cluster"),
        ({**LEAST, "cluster": ""}, "/cluster"),
        ({**LEAST, "nats": {"url": "tls://me:secret@n:4222"}}, "/nats/url"),
        ({**LEAST, "nats": {"url": "https://n"}}, "/nats/url"),
        ({**LEAST, "registration": {"seed": "UABC"}}, "/registration/seed"),
        ({**LEAST, "registration": {"seed": SEED, "secretName": "x"}}, "not both"),
        ({**LEAST, "access": {"mode": "root"}}, "/access/mode"),
        ({**LEAST, "access": {"namespaces": ["a"]}}, "only for access.mode namespaces"),
        ({**LEAST, "access": {"impersonate": ["cd"]}}, "/access/impersonate/0"),
        ({**LEAST, "policy": {"deny": ["secrets"]}}, "/policy/deny/0"),
        ({**LEAST, "polici": {}}, "polici"),
        ({**LEAST, "watch": {"deny": ["events"]}}, "/watch/deny/0"),
    ],
)
def test_a_wrong_value_is_refused_and_named(values: Object, message: str):
    with pytest.raises(helm().HelmError) as refused:
        render_agent(values)
    assert message in str(refused.value)
    assert SEED not in str(refused.value)


def test_every_key_has_a_description():
    bare: list[str] = []

    def walk(node: Any, place: str) -> None:
        for key, child in node.get("properties", {}).items():
            if "description" not in child:
                bare.append(f"{place}.{key}")
            walk(child, f"{place}.{key}")

    walk(json.loads((CHART / "values.schema.json").read_text()), "")
    assert bare == []
