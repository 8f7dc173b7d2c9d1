"""The restricted Pod Security Standard, probes, and no credential where others see it (rule S9)."""

from __future__ import annotations

import pytest

from support.api.rendered_chart import SEED, VALUES, Object, of_kind, pods, render, secret
from support.rows import each_row

HOST = {"hostNetwork", "hostPID", "hostIPC", "hostUsers"}
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}


@each_row("values", VALUES.values())
def test_s9_every_pod_meets_the_restricted_standard(values: Object):
    for place, spec in pods(render(values)):
        assert not HOST & spec.keys(), place
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, place
        assert security.get("runAsUser", 1) > 0, place
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, place
        for volume in spec.get("volumes", []):
            assert set(volume) - {"name"} <= VOLUMES, (place, volume)
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, place
            assert not any("hostPort" in port for port in container.get("ports", [])), place


IDS = ("runAsUser", "runAsGroup", "fsGroup")


@pytest.mark.parametrize("platform", ["platform", None])
@pytest.mark.parametrize("name", IDS)
def test_an_id_may_be_left_to_the_platform_in_every_pod(name: str, platform: str | None):
    ids = {**dict.fromkeys(IDS, 20_000), name: platform}
    for place, spec in pods(render({"pods": {"securityContext": ids}})):
        security = spec["securityContext"]
        fixed = {key: security[key] for key in IDS if key in security}
        assert fixed == {key: 20_000 for key in IDS if key != name}, place


def test_no_pod_has_a_fixed_id_where_the_platform_gives_them():
    values = {**VALUES["everything"], "pods": VALUES["examples/openshift.yaml"]["pods"]}
    for place, spec in pods(render(values)):
        assert not set(IDS) & spec["securityContext"].keys(), place


def test_group_0_is_an_id_like_any_other():
    ids = {"runAsUser": 20_000, "runAsGroup": 0, "fsGroup": 0}
    for place, spec in pods(render({"pods": {"securityContext": ids}})):
        assert ids.items() <= spec["securityContext"].items(), place


def test_every_pod_is_scheduled_as_the_values_of_all_pods_say():
    settings: Object = {
        "nodeSelector": {"pool": "infra"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "priorityClassName": "platform",
    }
    values = {**VALUES["everything"], "pods": settings}
    for place, spec in pods(render(values)):
        assert settings.items() <= spec.items(), place


def test_dns_is_reached_on_the_ports_of_its_pods():
    (denying,) = [
        policy["spec"]
        for policy in of_kind(render(VALUES["examples/openshift.yaml"]), "NetworkPolicy")
        if policy["metadata"]["name"] == "fb-fleetbus-deny"
    ]
    ports = denying["egress"][0]["ports"]
    assert ports == [
        {"port": port, "protocol": protocol} for port in (53, 5353) for protocol in ("UDP", "TCP")
    ]


@each_row("values", VALUES.values())
def test_every_long_running_container_has_probes_limits_and_a_pinned_image(values: Object):
    for place, spec in pods(render(values)):
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert container["image"].rpartition(":")[2] not in ("", "latest"), place
            assert "memory" in container["resources"]["limits"], place
            assert "requests" in container["resources"], place
        for container in spec["containers"]:
            # The reloader serves nothing; the fleet works without what it loads.
            if not place.startswith("Pod ") and container["name"] != "reloader":
                probes = {"startupProbe", "livenessProbe", "readinessProbe"}
                assert probes <= container.keys(), place


def test_a_service_account_token_is_mounted_only_where_the_hub_is_asked():
    mounted = {
        place.split("fb-fleetbus-")[1]
        for place, spec in pods(render(VALUES["everything"]))
        if spec["automountServiceAccountToken"]
    }
    assert mounted == {
        *("watcher-hub", "pool", "projector", "distributor", "query-api"),
        *("reconciler-shop", "reconciler-mail"),
    }


def test_s9_no_credential_is_in_an_argument_or_the_environment():
    objects = render(VALUES["everything"])
    passwords = {
        secret_object["stringData"]["password"]
        for secret_object in of_kind(objects, "Secret")
        if "password" in secret_object.get("stringData", {})
    }
    assert len(passwords) > 5
    for place, spec in pods(objects):
        text = str([(c.get("command"), c.get("args"), c.get("env")) for c in spec["containers"]])
        assert SEED not in text, place
        assert not [password for password in passwords if password in text], place
        for container in spec["containers"]:
            for variable in container.get("env", []):
                key = variable.get("valueFrom", {}).get("secretKeyRef", {}).get("key", "")
                assert key in ("", "username", "sentinel-username"), (place, variable)


def test_each_component_mounts_its_own_credentials_and_no_others():
    for place, spec in pods(render(VALUES["everything"])):
        name = place.split()[1]
        mounted = {
            source["secret"]["name"]
            for volume in spec.get("volumes", [])
            for source in volume.get("projected", {}).get("sources", [])
            if source["secret"].get("items") != [{"key": "ca.crt", "path": "ca.crt"}]
        }
        assert mounted <= {f"{name}-nats", f"{name}-redis"}, place


def test_s9_everything_is_denied_that_no_policy_allows():
    policies = of_kind(render({}), "NetworkPolicy")
    selected = [policy["spec"]["podSelector"]["matchLabels"] for policy in policies]
    everything = min(selected, key=len)
    denying = policies[selected.index(everything)]["spec"]
    assert denying["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in denying
    for workload in of_kind(render({}), "Deployment", "StatefulSet"):
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        assert everything.items() <= labels
        assert sum(1 for each in selected if each.items() <= labels) == 2, workload["metadata"][
            "name"
        ]


def test_s7_no_policy_lets_a_pod_reach_the_metadata_service():
    for policy in of_kind(render(VALUES["everything"]), "NetworkPolicy"):
        for rule in policy["spec"].get("egress", []):
            blocks = [to["ipBlock"] for to in rule.get("to", []) if "ipBlock" in to]
            wide = [block for block in blocks if block["cidr"] == "0.0.0.0/0"]
            assert all("169.254.0.0/16" in block["except"] for block in wide)


def test_the_configuration_of_valkey_has_only_hashes_of_passwords():
    objects = render(VALUES["everything"])
    config = secret(objects, "fb-fleetbus-valkey-config")
    for user in ("projector", "query-api"):
        password = secret(objects, f"fb-fleetbus-{user}-redis")["password"]
        assert password not in config["users.acl"]
