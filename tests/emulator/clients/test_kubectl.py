"""kubectl works unchanged.

Some of these tests run with the newest kubectl that is found. With FLEETBUS_KUBECTLS=all (or a list
of binaries) all of them run with each kubectl, as `make conformance` wants it.
"""

import asyncio
from typing import Any

import yaml

from emulator.support.kube_calls import deployment, widget
from emulator.support.kubectl_rig import (
    SERVICE,
    SETTINGS,
    WEB,
    Kubectl,
    define_widgets,
    kubectl,
    thorough,
)

__all__ = ["kubectl"]


def scaled(replicas: int, image: str = "nginx:1") -> dict[str, Any]:
    obj = deployment("web", replicas=replicas)
    obj["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return obj


# get and describe ---------------------------------------------------------------------------------


async def test_get_prints_every_form(kubectl: Kubectl):
    await kubectl.apply(WEB, SERVICE, SETTINGS)
    await kubectl("rollout", "status", "deploy/web")
    pods = ("get", "pods", "-l", "app=web")
    wide, yaml_, json_, names, custom, path, every, running, none = await kubectl.all(
        ("get", "deploy,rs,pods,svc,cm", "-o", "wide"),
        ("get", "deploy", "web", "-o", "yaml"),
        ("get", "deploy/web", "svc/web", "-o", "json"),
        (*pods, "-o", "name"),
        ("get", "deploy", "-o", "custom-columns=N:.metadata.name,R:.spec.replicas"),
        ("get", "deploy", "web", "-o", "jsonpath={.spec.replicas}"),
        ("get", "all", "-A", "--show-labels"),
        (*pods, "--field-selector", "status.phase=Running", "--sort-by", ".spec.nodeName"),
        ("get", "pods", "-n", "nowhere"),
    )
    for text in ("2/2", "nginx:1", "pod-template-hash=", "sim-node-", "ClusterIP", "app=web"):
        assert text in wide.out
    assert yaml.safe_load(yaml_.out)["status"]["readyReplicas"] == 2
    assert [item["kind"] for item in json_.json["items"]] == ["Deployment", "Service"]
    assert [line[:8] for line in names.out.splitlines()] == ["pod/web-", "pod/web-"]
    assert custom.rows == [["web", "2"]]
    assert path.out == "2"
    assert "deployment.apps/web" in every.out
    assert "service/web" in every.out
    assert [row[2] for row in running.rows] == ["Running", "Running"]
    assert "No resources found in nowhere namespace" in none.err


@thorough
async def test_get_pages_and_explains_what_it_cannot_get(kubectl: Kubectl):
    for number in range(5):
        kubectl.cluster.create("v1/configmaps", {"metadata": {"name": f"c{number}"}}, "kube-public")
    paged = await kubectl("get", "cm", "-n", "kube-public", "--chunk-size=2")
    assert [row[0] for row in paged.rows if row[0][0] == "c"] == ["c0", "c1", "c2", "c3", "c4"]
    limits = {r.query.get("limit") for r in kubectl.cluster.requests if "kube-public" in r.path}
    assert limits == {"2"}
    missing, unknown, label, field = await asyncio.gather(
        kubectl.refused("get", "cm", "none"),
        kubectl.refused("get", "nothing"),
        kubectl.refused("get", "pods", "-l", "a in (b"),
        kubectl.refused("get", "pods", "--field-selector", "spec.foo=1"),
    )
    assert 'Error from server (NotFound): configmaps "none" not found' in missing
    assert "doesn't have a resource type" in unknown
    assert "unable to parse requirement" in label
    assert "field label not supported: spec.foo" in field


async def test_get_watches(kubectl: Kubectl):
    watching = await kubectl.start("get", "cm", "-w", "-n", "kube-public")
    assert watching.stdout is not None
    try:
        assert b"NAME" in await watching.stdout.readline()
        body: dict[str, Any] = {"metadata": {"name": "seen"}, "data": {"a": "1"}}
        kubectl.cluster.create("v1/configmaps", body, "kube-public")
        while not (line := await watching.stdout.readline()).startswith(b"seen"):
            assert line
        assert line.split()[:2] == [b"seen", b"1"]
        kubectl.cluster.patch("v1/configmaps", "kube-public", "seen", {"data": {"b": "2"}})
        assert (await watching.stdout.readline()).split()[:2] == [b"seen", b"2"]
    finally:
        watching.kill()
        await watching.communicate()


@thorough
async def test_describe_tells_the_whole_story(kubectl: Kubectl):
    await kubectl.apply(WEB, SERVICE, SETTINGS)
    await define_widgets(kubectl)
    await kubectl.apply(widget("w1"))
    await kubectl("rollout", "status", "deploy/web")
    live = kubectl.cluster.get("apps/v1/deployments", "default", "web")
    assert live is not None
    uid = live["metadata"]["uid"]
    involved = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": uid}
    involved["namespace"] = "default"
    event = {"involvedObject": involved, "reason": "Said", "message": "so", "type": "Normal"}
    meta = {"name": "web.1"}
    kubectl.cluster.create("v1/events", {"metadata": meta, **event}, "default")
    deploy, pod, node, namespace, config, service, custom, events = await kubectl.all(
        ("describe", "deploy", "web"),
        ("describe", "pod", "-l", "app=web"),
        ("describe", "node", "sim-node-1"),
        ("describe", "ns", "default"),
        ("describe", "cm", "settings"),
        ("describe", "svc", "web"),
        ("describe", "widget", "w1"),
        ("events", "--for", "deployment/web"),
    )
    assert "2 desired | 2 updated | 2 total | 2 available" in deploy.out
    assert "NewReplicaSet:   web-" in deploy.out
    assert "Said" in deploy.out
    assert pod.out.count("State:          Running") == 2
    assert "Non-terminated Pods:" in node.out
    assert "Status:       Active" in namespace.out
    assert "Data\n====" in config.out
    assert "TargetPort:" in service.out
    assert "Size:      3" in custom.out
    assert "Said" in events.out


# apply and diff -----------------------------------------------------------------------------------


async def test_apply_on_the_client_side_creates_changes_and_removes(kubectl: Kubectl):
    assert "deployment.apps/web created" in (await kubectl.apply(WEB, SETTINGS)).out
    assert "deployment.apps/web unchanged" in (await kubectl.apply(WEB)).out
    labelled = scaled(3)
    labelled["metadata"]["labels"] = {"tier": "front"}
    assert "configured" in (await kubectl.apply(labelled)).out
    await kubectl.apply(WEB)
    live = (await kubectl("get", "deploy", "web", "-o", "json")).json
    assert live["spec"]["replicas"] == 2
    assert "labels" not in live["metadata"]
    last = await kubectl("apply", "view-last-applied", "deploy", "web", "-o", "json")
    assert last.json["spec"]["replicas"] == 2
    dry = await kubectl.apply(scaled(9), options=["--dry-run=server"])
    assert "configured (server dry run)" in dry.out


@thorough
async def test_diff_shows_what_apply_would_change(kubectl: Kubectl):
    await kubectl.apply(WEB)
    same = await kubectl.try_("diff", "-f", "-", stdin=yaml.safe_dump(WEB))
    assert (same.status, same.out) == (0, "")
    other = await kubectl.try_("diff", "-f", "-", stdin=yaml.safe_dump(scaled(4)))
    assert other.status == 1
    assert "-  replicas: 2" in other.out
    assert "+  replicas: 4" in other.out


async def test_apply_on_the_server_side_tells_of_conflicts_and_can_force(kubectl: Kubectl):
    await kubectl.apply(WEB)
    migrated = await kubectl.apply(WEB, options=["--server-side"])
    assert "serverside-applied" in migrated.out
    manifest = yaml.safe_dump(scaled(3))
    other = ("apply", "--server-side", "--field-manager=other", "-f", "-")
    refused = await kubectl.refused(*other, stdin=manifest)
    assert 'conflict with "kubectl"' in refused
    assert "--force-conflicts" in refused
    await kubectl(*other, "--force-conflicts", stdin=manifest)
    ended = await kubectl("get", "deploy", "web", "-o", "json", "--show-managed-fields")
    managers = {entry["manager"] for entry in ended.json["metadata"]["managedFields"]}
    assert {"kubectl", "other"} <= managers
    assert ended.json["spec"]["replicas"] == 3


@thorough
async def test_a_misspelt_field_is_refused_or_warned_of(kubectl: Kubectl):
    wrong = yaml.safe_dump({**SETTINGS, "dta": {}})
    apply = ("apply", "-f", "-")
    assert 'unknown field "dta"' in await kubectl.refused(*apply, stdin=wrong)
    assert 'unknown field "dta"' in (await kubectl(*apply, "--validate=warn", stdin=wrong)).err
    assert (await kubectl(*apply, "--validate=ignore", stdin=wrong)).err == ""


# what there is ------------------------------------------------------------------------------------


async def test_explain_knows_builtin_and_custom_types(kubectl: Kubectl):
    await define_widgets(kubectl)
    kind, field, full, volume, custom, size, top = await kubectl.all(
        ("explain", "deployment"),
        ("explain", "pod.spec.containers.imagePullPolicy"),
        ("explain", "pod.spec", "--recursive"),
        ("explain", "hpa.spec.metrics"),
        ("explain", "widget.spec"),
        ("explain", "widget.spec.size"),
        ("explain", "service.spec.ports"),
    )
    assert "Runs equal pods and updates them step by step." in kind.out
    assert "<string>" in field.out
    assert "terminationGracePeriodSeconds\t<integer>" in full.out
    assert "containerResource" in volume.out
    assert "What is wanted." in custom.out
    assert "<integer>" in size.out
    assert "<[]ServicePort>" in top.out
    assert "does not exist" in await kubectl.refused("explain", "deployment.spec.replcas")


async def test_discovery_versions_rights_and_health(kubectl: Kubectl):
    await define_widgets(kubectl)
    every, custom, named, versions, info, version, can, who, may, ready = await kubectl.all(
        ("api-resources",),
        ("api-resources", "--api-group=example.com", "-o", "wide"),
        ("api-resources", "--namespaced=false", "-o", "name"),
        ("api-versions",),
        ("cluster-info",),
        ("version", "-o", "json"),
        ("auth", "can-i", "create", "deployments.apps"),
        ("auth", "whoami", "-o", "json") if kubectl.version >= (1, 28) else ("config", "view"),
        ("auth", "can-i", "--list"),
        ("get", "--raw", "/readyz?verbose"),
    )
    assert "deploy" in every.out
    assert "widgets.example.com" not in every.out
    assert [row[:2] for row in custom.rows] == [["widgets", "wd"]]
    assert "nodes" in named.out.splitlines()
    assert {"v1", "apps/v1", "autoscaling/v1", "example.com/v1"} <= set(versions.out.split())
    assert "control plane" in info.out
    assert version.json["serverVersion"]["minor"] == "33"
    assert can.out == "yes\n"
    assert who.out
    assert "*.*" in may.out
    assert "readyz check passed" in ready.out
    for resource in ("pods", "nodes"):
        assert "Metrics API not available" in await kubectl.refused("top", resource)


# create and run -----------------------------------------------------------------------------------

GENERATORS = {
    "ns": "namespace team",
    "cm": "configmap settings --from-literal=a=1",
    "secret": "secret generic pass --from-literal=user=ann",
    "deploy": "deployment api --image=nginx:1 --replicas=2 --port=80",
    "job": "job hello --image=busybox:1",
    "cj": "cronjob tick --image=busybox:1 --schedule=@hourly",
    "sa": "serviceaccount robot",
    "quota": "quota small --hard=pods=9",
    "role": "role reader --verb=get --resource=pods",
    "rolebinding": "rolebinding readers --role=reader --user=ann",
    "clusterrole": "clusterrole seer --verb=get --resource=nodes",
    "clusterrolebinding": "clusterrolebinding seers --clusterrole=seer --user=ann",
    "ing": "ingress shop --rule=a.example.com/*=web:80",
    "svc": "service clusterip web --tcp=80:8080",
    "pdb": "poddisruptionbudget budget --selector=app=web --min-available=1",
    "pc": "priorityclass high --value=10",
}


async def test_create_of_every_generator(kubectl: Kubectl):
    commands = [("create", *line.split()) for line in GENERATORS.values()]
    for command, ended in zip(commands, await kubectl.all(*commands), strict=True):
        name = command[3] if command[1] in ("secret", "service") else command[2]
        assert ended.out.endswith(f"/{name} created\n")
    everything = await kubectl("get", ",".join(GENERATORS), "-o", "name")
    assert len(everything.out.splitlines()) > len(GENERATORS)
    token = await kubectl("create", "token", "robot", "--duration=10m")
    assert token.out.count(".") == 2
    limits = kubectl.cluster.get("v1/resourcequotas", "default", "small")
    assert limits is not None
    assert limits["spec"] == {"hard": {"pods": "9"}}
    twice = await kubectl.refused("create", "ns", "team")
    assert "already exists" in twice


async def test_a_job_of_a_cron_job_is_its_template_with_every_zero(kubectl: Kubectl):
    empty: dict[str, Any] = {}
    pod = {
        "containers": [
            {
                "name": "c",
                "image": "i:1",
                "env": [{"name": "EMPTY", "value": ""}],
                "securityContext": {"runAsUser": 0, "privileged": False},
                "resources": {"limits": {"cpu": "500m"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
            }
        ],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "volumes": [{"name": "v", "emptyDir": empty}, {"name": "s", "secret": {"secretName": "x"}}],
    }
    job = {"backoffLimit": 0, "ttlSecondsAfterFinished": 0, "template": {"spec": pod}}
    cron = {"schedule": "@hourly", "suspend": True, "jobTemplate": {"spec": job}}
    cron_job = kubectl.cluster.create(
        "batch/v1/cronjobs", {"metadata": {"name": "tick"}, "spec": cron}, "default"
    )
    jobs: list[dict[str, Any]] = []
    kubectl.cluster.subscribe(lambda change: jobs.append(change.new))
    await kubectl("create", "job", "copy", "--from=cronjob/tick")
    created = next(job for job in jobs if job["kind"] == "Job")
    assert created["spec"]["backoffLimit"] == 0
    assert created["spec"]["ttlSecondsAfterFinished"] == 0
    (owner,) = created["metadata"]["ownerReferences"]
    assert owner["uid"] == cron_job["metadata"]["uid"]
    template = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert created["spec"]["template"]["spec"] == template


@thorough
async def test_run_expose_autoscale_and_logs(kubectl: Kubectl):
    await kubectl("run", "solo", "--image=nginx:1", "--port=80", "--labels=app=solo")
    await kubectl("wait", "--for=condition=Ready", "pod/solo", "--timeout=10s")
    await kubectl.apply(WEB)
    await kubectl.all(
        ("expose", "pod", "solo", "--port=80"),
        ("expose", "deploy", "web", "--port=80", "--type=NodePort"),
        ("autoscale", "deploy", "web", "--min=1", "--max=3", "--cpu-percent=50"),
    )
    hpa, service, logs, prefixed = await kubectl.all(
        ("get", "hpa"),
        ("get", "svc"),
        ("logs", "solo"),
        ("logs", "-l", "app=solo", "--prefix"),
    )
    assert "cpu: <unknown>/50%" in hpa.out
    assert "NodePort" in service.out
    assert "solo" in logs.out
    assert "[pod/solo/solo]" in prefixed.out
    assert "container nope is not valid" in await kubectl.refused("logs", "solo", "-c", "nope")
    refused = await kubectl.refused("exec", "solo", "--", "ls")
    assert "the pods of this cluster are simulated" in refused


@thorough
async def test_nodes_are_cordoned_drained_and_tainted(kubectl: Kubectl):
    await kubectl.apply(WEB)
    await kubectl("rollout", "status", "deploy/web")
    await kubectl("cordon", "sim-node-1")
    nodes = await kubectl("get", "nodes", "-o", "wide")
    assert nodes.rows[0][:2] == ["sim-node-1", "Ready,SchedulingDisabled"]
    await kubectl("drain", "sim-node-1", "--ignore-daemonsets", "--timeout=10s")
    await kubectl("rollout", "status", "deploy/web", "--timeout=10s")
    pods = kubectl.cluster.list("v1/pods", "default")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"sim-node-2"}
    await kubectl("uncordon", "sim-node-1")
    await kubectl("taint", "node", "sim-node-1", "a=b:NoSchedule")
    node = kubectl.cluster.get("v1/nodes", None, "sim-node-1")
    assert node is not None
    assert node["spec"]["taints"] == [{"key": "a", "value": "b", "effect": "NoSchedule"}]
