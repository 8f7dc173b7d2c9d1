"""kubectl prints the same from `/kube/<cluster>` as from the cluster, but where documented."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

from support.eventually import eventually
from support.full import FULL

if TYPE_CHECKING:
    from emulator.support.kubectl_rig import Said
    from query_api.kube.conftest import KubectlFleet

pytestmark = pytest.mark.longer

SHORT = """
get pods -A -o wide
get deploy,rs,svc
get deploy/web svc/web -o json
get cm --chunk-size=2
get cm -l n --sort-by=.metadata.name
get po -n nowhere
get nodes
get cm none
get nothing
get wd -o wide
describe deploy web
""".strip().splitlines()
LONG = """
get pods -A
get pods -A --show-labels
get pods -n default -l app=web --field-selector status.phase=Running
get pods -A -o name
get deploy,rs,svc -o wide
get deploy web
get deploy/web -o yaml
get deploy web -o jsonpath={.spec.replicas}
get deploy -o custom-columns=N:.metadata.name,R:.spec.replicas
get cm -l n!=1,n!=2 --no-headers
get cm c1 c2
get cm -L n
get ns
get all
get widgets w1
get events -A
get widget w1 -o yaml
get crd -o name
get cm none -n nowhere
describe cm c1
describe svc web
describe node
""".strip().splitlines()

DOCUMENTED = re.compile(
    r"resourceVersion: .*|\"resourceVersion\": .*|"  # of the snapshot
    r"\b\d+(m\d+)?s\b"  # ages, which go on
)


def shown(ended: Said) -> tuple[int, str, str]:
    """The printed text, without what is documented to differ."""
    out, err = (DOCUMENTED.sub("-", text) for text in (ended.out, ended.err))
    return ended.status, re.sub(r" +", " ", out), re.sub(r" +", " ", err)


@pytest.mark.slow
async def test_the_same_transcript_from_the_cluster_and_from_kube(fleet: KubectlFleet):
    different: list[str] = []
    for line in SHORT + LONG * FULL:
        command = line.split()
        expected, actual = await asyncio.gather(fleet.real.try_(*command), fleet.one.try_(*command))
        if shown(expected) != shown(actual):
            different.append(f"$ kubectl {line}\n{shown(expected)}\n{shown(actual)}")
    assert not different, "\n\n".join(different)


@pytest.mark.slow
async def test_t19_the_whole_fleet_side_by_side(fleet: KubectlFleet):
    cms, single, wide, deploy, tree, sorted_ = await fleet.every.all(
        ("get", "cm", "-n", "default", "--chunk-size=4"),
        ("get", "cm", "c1"),
        ("get", "pods", "-A", "-o", "wide", "-l", "app=web"),
        ("get", "deploy", "web", "--show-labels"),
        ("get", "cm", "c1", "-o", "json"),
        ("get", "cm", "-l", "n", "--sort-by=.metadata.name"),
    )
    assert cms.head[0] == "CLUSTER"
    names = [*(f"c{number}" for number in range(5)), "kube-root-ca.crt", "only-{}"]
    assert [row[:2] for row in cms.rows] == [[c, n.format(c)] for c in "ab" for n in names]
    assert [row[:2] for row in single.rows] == [["a", "c1"], ["b", "c1"]]
    assert wide.out.splitlines()[0].split()[:4] == ["NAMESPACE", "CLUSTER", "NAME", "READY"]
    assert [row[1] for row in wide.rows] == ["a", "a", "b", "b"]
    assert [row[:3] for row in deploy.rows] == [["a", "web", "2/2"], ["b", "web", "2/2"]]
    clusters = [i["metadata"]["annotations"]["fleetbus.dev/cluster"] for i in tree.json["items"]]
    assert clusters == ["a", "b"]
    assert [row[1] for row in sorted_.rows] == [f"c{n}" for n in range(5) for _ in "ab"]
    assert "Name:         only-b" in (await fleet.every("describe", "cm", "only-b")).out
    assert "is in 2 clusters (a, b)" in await fleet.every.refused("describe", "cm", "c1")


async def test_t19_get_w_shows_changes_of_every_cluster(fleet: KubectlFleet):
    """kubectl prints an object that is deleted once more."""
    single = await fleet.one.start("get", "cm", "-l", "watched", "-w", "-o", "name")
    every = await fleet.every.start("get", "cm", "-l", "watched", "-w", "--output-watch-events")
    every_cluster = await fleet.every.start("get", "cm", "c1", "-w", "-o", "name")
    assert single.stdout is not None
    assert every.stdout is not None
    assert every_cluster.stdout is not None
    try:
        for _ in "ab":
            assert await every_cluster.stdout.readline() == b"configmap/c1\n"
        open_watches = "fleetbus_query_api_watches"
        await eventually(lambda: REGISTRY.get_sample_value(open_watches) == 3)
        metadata = {"name": "seen", "labels": {"watched": "yes"}}
        for cluster in fleet.rig.clusters.values():
            cluster.create("v1/configmaps", {"metadata": metadata}, "default")
        assert await single.stdout.readline() == b"configmap/seen\n"
        lines = [(await every.stdout.readline()).split() for _ in range(3)]
        # Only now: of changes that follow each other at once the last one alone is shown.
        fleet.rig.clusters["b"].delete("v1/configmaps", "default", "seen")
        lines.append((await every.stdout.readline()).split())
        assert lines[0][:3] == [b"EVENT", b"CLUSTER", b"NAME"]
        assert sorted(line[:3] for line in lines[1:]) == [
            [b"ADDED", b"a", b"seen"],
            [b"ADDED", b"b", b"seen"],
            [b"DELETED", b"b", b"seen"],
        ]
    finally:
        for process in (single, every, every_cluster):
            process.kill()
            await process.communicate()


@pytest.mark.full  # test_refusals, test_discovery and test_openapi have what the API answers
async def test_a7_writes_are_refused_and_explain_and_discovery_answer(fleet: KubectlFleet):
    commands: list[tuple[str, ...]] = [
        ("delete", "cm", "c1"),
        ("scale", "deploy", "web", "--replicas=3"),
        ("label", "cm", "c1", "a=b"),
        ("create", "ns", "new"),
        ("logs", "deploy/web"),
        ("exec", "deploy/web", "--", "ls"),
    ]
    for command in commands:
        refused = await fleet.one.refused(*command)
        assert "write to the API server of the cluster itself" in refused, command

    kind, field, described, custom, everywhere = await fleet.one.all(
        ("explain", "deployment"),
        ("explain", "pod.spec.containers.imagePullPolicy"),
        ("explain", "pod.spec", "--recursive"),
        ("explain", "widget.spec"),
        ("explain", "service.spec.ports.targetPort"),
    )
    assert "updates them step by step" in kind.out
    assert "<string>" in field.out
    assert "Image pull policy" in field.out
    assert "terminationGracePeriodSeconds\t<integer>" in described.out
    assert "What is wanted." in custom.out
    assert "<IntOrString>" in everywhere.out
    assert "does not exist" in await fleet.one.refused("explain", "deployment.spec.replcas")
    assert "<[]Container>" in (await fleet.every("explain", "pod.spec")).out

    every, custom, versions, version = await fleet.one.all(
        ("api-resources",),
        ("api-resources", "--api-group=example.com", "-o", "wide"),
        ("api-versions",),
        ("version", "-o", "json"),
    )
    assert ["pods", "po", "v1", "true", "Pod"] in every.rows
    assert [row[:2] for row in custom.rows] == [["widgets", "wd"]]
    assert custom.rows[0][-2:] == ["get,list,watch", "all"]
    assert {"v1", "apps/v1", "example.com/v1"} <= set(versions.out.split())
    assert version.json["serverVersion"]["minor"] == "33"


@pytest.mark.full  # test_refusals and test_objects have what the API answers
async def test_waits_and_subresources(fleet: KubectlFleet):
    """In the fleet any cluster would end a wait, so that it is refused, as of one it is not."""
    wait = ("wait", "--timeout=20s", "--for=condition=Available", "deploy/web")
    for command in (
        wait,
        (*wait[:3], "deploy", "-l", "app=web"),
        ("wait", "--timeout=1s", "--for=delete", "cm/c1"),
        ("rollout", "status", "deploy/web"),
    ):
        assert "would end with the first cluster" in await fleet.every.refused(*command), command
    met, rolled = await fleet.one.all(wait, ("rollout", "status", "deploy/web"))
    assert "condition met" in met.out
    assert "successfully rolled out" in rolled.out

    # A raw path is a whole one. Of a refusal kubectl shows the reason, in words of its own.
    raw = ("get", "--raw")
    assert "NotFound" in await fleet.one.refused(*raw, "/kube/a/healthz")
    proxied = await fleet.one.refused(*raw, "/kube/a/api/v1/nodes/none/proxy/metrics")
    assert "MethodNotAllowed" in proxied
    paths = await fleet.one(*raw, "/kube/a")
    assert "/version" in paths.json["paths"]
    if fleet.one.version < (1, 24):
        return
    status, scale = await fleet.one.all(
        ("get", "deploy", "web", "--subresource=status", "-o", "jsonpath={.status.replicas}"),
        ("get", "deploy", "web", "--subresource=scale"),
    )
    assert status.out == "2"
    assert scale.rows[0][:3] == ["web", "2", "2"]


@pytest.mark.full  # test_reviews has what the API answers
async def test_kubectl_says_what_may_be_read(fleet: KubectlFleet):
    """`auth can-i` ends with 1 for a no, and says why; since 1.32 it asks in protobuf."""
    yes, every, none, deny = [
        await before.try_("auth", "can-i", *words)
        for before, *words in (
            (fleet.one, "list", "pods", "-n", "default"),
            (fleet.every, "watch", "deployments.apps", "-A"),
            (fleet.one, "--list"),
            (fleet.one, "delete", "pods"),
        )
    ]
    assert [yes.out, every.out] == ["yes\n", "yes\n"]
    assert "can-i list pods" in none.err
    assert (deny.status, "no - the fleet is read-only here" in deny.out) == (1, True)
    who = await fleet.every.try_("auth", "whoami", "-o", "json")
    if fleet.every.version > (1, 27):  # that asks for a version which is no longer served
        assert who.json["status"]["userInfo"] == {"username": "system:anonymous"}
