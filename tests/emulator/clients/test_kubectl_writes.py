"""kubectl works unchanged: what changes and removes objects. See test_kubectl.py."""

import asyncio
import stat

import yaml

from emulator.support.kube_calls import widget
from emulator.support.kubectl_rig import (
    SERVICE,
    SETTINGS,
    WEB,
    Kubectl,
    define_widgets,
    kubectl,
    thorough,
)
from fleetbus_emulator.apiserver import LoggedRequest
from support.eventually import eventually

__all__ = ["kubectl"]


def requests_for(kubectl: Kubectl, plural: str) -> list[LoggedRequest]:
    """The requests of kubectl for a resource."""
    return [
        request
        for request in kubectl.cluster.requests
        if request.user_agent.startswith("kubectl") and f"/{plural}" in request.path
    ]


async def test_patches_of_all_types_and_of_subresources(kubectl: Kubectl):
    await define_widgets(kubectl)
    await kubectl.apply(WEB, widget("w1"))
    patch = ("patch", "deploy", "web")
    side = '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"s:1"}]}}}}'
    await kubectl(*patch, "-p", side)
    await kubectl(*patch, "--type=merge", "-p", '{"metadata":{"labels":{"x":"y"}}}')
    remove = '[{"op":"remove","path":"/metadata/labels/x"}]'
    await kubectl(*patch, "--type=json", "-p", remove)
    await kubectl(*patch, "--subresource=scale", "--type=merge", "-p", '{"spec":{"replicas":4}}')
    status = '{"status":{"phase":"Ready"}}'
    await kubectl("patch", "wd", "w1", "--subresource=status", "--type=merge", "-p", status)
    refused = await kubectl.refused("patch", "wd", "w1", "-p", '{"spec":{"size":4}}')
    assert "application/strategic-merge-patch+json is not supported" in refused
    live = kubectl.cluster.get("apps/v1/deployments", "default", "web")
    assert live is not None
    names = [c["name"] for c in live["spec"]["template"]["spec"]["containers"]]
    assert sorted(names) == ["c", "side"]
    assert live["spec"]["replicas"] == 4
    assert "labels" not in live["metadata"]
    shown, scale = await kubectl.all(
        ("get", "wd", "w1", "--subresource=status", "-o", "jsonpath={.status.phase}"),
        ("get", "deploy", "web", "--subresource=scale"),
    )
    assert shown.out == "Ready"
    assert scale.rows[0][:2] == ["web", "4"]


@thorough
async def test_edit_replace_label_annotate_and_set(kubectl: Kubectl):
    await kubectl.apply(WEB, SERVICE, SETTINGS)
    editor = kubectl.folder / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/a: "1"/a: "2"/\' "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    assert "edited" in (await kubectl("edit", "cm", "settings")).out
    edited = await kubectl("get", "cm", "settings", "-o", "json")
    assert edited.json["data"] == {"a": "2"}
    old = edited.out.replace('"2"', '"3"')
    await kubectl("replace", "-f", "-", stdin=old)
    assert "Conflict" in await kubectl.refused("replace", "-f", "-", stdin=old)
    again = yaml.safe_dump({**SETTINGS, "data": {"a": "4"}})
    await kubectl("replace", "--force", "-f", "-", stdin=again)
    await kubectl("label", "deploy", "web", "tier=front")
    overwrite = await kubectl.refused("label", "deploy", "web", "tier=back")
    assert "--overwrite is false" in overwrite
    await kubectl.all(
        ("label", "deploy", "web", "tier=back", "--overwrite"),
        ("label", "svc", "--all", "x=y"),
        ("annotate", "cm", "settings", "note=hi"),
        ("set", "image", "deploy/web", "c=nginx:2"),
        ("set", "selector", "svc", "web", "app=web,x=y"),
    )
    await kubectl("set", "env", "deploy/web", "A=B")
    await kubectl("set", "resources", "deploy/web", "--limits=cpu=200m")
    await kubectl("label", "deploy", "web", "tier-")
    live = kubectl.cluster.get("apps/v1/deployments", "default", "web")
    assert live is not None
    (container,) = live["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "nginx:2"
    assert container["env"] == [{"name": "A", "value": "B"}]
    assert container["resources"] == {"limits": {"cpu": "200m"}}
    assert "labels" not in live["metadata"]


async def test_scale_and_rollout(kubectl: Kubectl):
    await kubectl.apply(WEB)
    await kubectl("scale", "deploy", "web", "--replicas=3")
    wrong = ("scale", "deploy", "web", "--current-replicas=4", "--replicas=5")
    assert "Expected replicas to be 4, was 3" in await kubectl.refused(*wrong)
    await kubectl("set", "image", "deploy/web", "c=nginx:2")
    status = ("rollout", "status", "deploy/web", "--timeout=10s")
    assert "successfully rolled out" in (await kubectl(*status)).out
    await kubectl("rollout", "restart", "deploy/web")
    await kubectl(*status)
    await kubectl("rollout", "undo", "deploy/web", "--to-revision=1")
    await kubectl(*status)
    history, revision = await kubectl.all(
        ("rollout", "history", "deploy/web"),
        ("rollout", "history", "deploy/web", "--revision=2"),
    )
    assert [line.split()[0] for line in history.out.splitlines()[2:] if line] == ["2", "3", "4"]
    assert "nginx:2" in revision.out
    await kubectl("rollout", "pause", "deploy/web")
    assert "already paused" in await kubectl.refused("rollout", "pause", "deploy/web")
    await kubectl("rollout", "resume", "deploy/web")
    (image,) = await kubectl.all(
        ("get", "deploy", "web", "-o", "jsonpath={..containers[*].image} {.spec.replicas}")
    )
    assert image.out == "nginx:1 3"


@thorough
async def test_rollouts_of_stateful_and_daemon_sets(kubectl: Kubectl):
    spec = {key: value for key, value in WEB["spec"].items() if key != "replicas"}
    for kind, more in (("StatefulSet", {"serviceName": "db", "replicas": 2}), ("DaemonSet", {})):
        name = kind.lower()
        await kubectl.apply({**WEB, "kind": kind, "metadata": {"name": name}, "spec": spec | more})
        status = ("rollout", "status", f"{name}/{name}", "--timeout=10s")
        await kubectl(*status)
        await kubectl("set", "image", f"{name}/{name}", "c=nginx:2")
        await kubectl(*status)
        history = await kubectl("rollout", "history", f"{name}/{name}")
        assert [line.split()[0] for line in history.out.splitlines()[2:] if line] == ["1", "2"]
        await kubectl("rollout", "undo", f"{name}/{name}", "--to-revision=1")
        await kubectl(*status)
        image = "jsonpath={.spec.template.spec.containers[0].image}"
        assert (await kubectl("get", name, name, "-o", image)).out == "nginx:1"


@thorough
async def test_wait_for_conditions_values_and_ends(kubectl: Kubectl):
    await kubectl.apply(WEB, SETTINGS)
    await kubectl.all(
        ("wait", "--for=condition=Available", "deploy/web", "--timeout=10s"),
        ("wait", "--for=jsonpath={.status.readyReplicas}=2", "deploy/web", "--timeout=10s"),
        ("wait", "--for=condition=Ready", "pod", "-l", "app=web", "--timeout=10s"),
    )
    waiting = asyncio.create_task(kubectl("wait", "--for=delete", "cm/settings", "--timeout=10s"))
    await eventually(lambda: any(r.verb == "watch" for r in requests_for(kubectl, "configmaps")))
    kubectl.cluster.delete("v1/configmaps", "default", "settings")
    assert "condition met" in (await waiting).out
    over = await kubectl.refused("wait", "--for=condition=No", "deploy/web", "--timeout=0.2s")
    assert "timed out waiting" in over


@thorough
async def test_delete_in_all_its_ways(kubectl: Kubectl):
    await kubectl.apply(WEB, SETTINGS)
    await kubectl("rollout", "status", "deploy/web")
    await kubectl("delete", "deploy", "web", "--cascade=orphan")
    left = await kubectl("get", "rs", "-l", "app=web", "-o", "name")
    assert left.out.startswith("replicaset.apps/web-")
    await kubectl("delete", "rs", "-l", "app=web", "--cascade=foreground")
    assert (await kubectl("get", "pods", "-o", "name")).out == ""
    await kubectl("run", "solo", "--image=nginx")
    await kubectl("delete", "pod", "solo", "--grace-period=1")
    await kubectl("run", "other", "--image=nginx")
    await kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    missing = await kubectl.refused("delete", "cm", "none")
    assert "NotFound" in missing
    await kubectl("delete", "cm", "none", "settings", "--ignore-not-found")
    await kubectl("create", "ns", "team")
    await kubectl("create", "cm", "inside", "-n", "team")
    await kubectl("delete", "ns", "team", "--timeout=10s")
    assert "NotFound" in await kubectl.refused("get", "ns", "team")
