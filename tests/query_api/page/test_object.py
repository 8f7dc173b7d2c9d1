"""One object in the page: what is intended, its tree with health, its Events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.processes.chromium import needs_chromium

if TYPE_CHECKING:
    from support.processes.chromium import Page
    from support.rigs.query_api import QueryApi

pytestmark = [needs_chromium, pytest.mark.ui]

MCR = "fleetbus.dev/multiclusterresources"
OBJECT = "/object?resource=deployments.apps&namespace=prod&name=web&cluster=eu1"
IMAGE = "spec.template.spec.containers[0].image"
LIST = {"spec": {"template": {"spec": {"containers": [{"image": "a"}]}}}}


def resource(customize: Any = (), *, state: str = "Applied", **template: Any) -> dict[str, Any]:
    metadata = {"name": "web", "namespace": "prod"}
    return {
        "spec": {
            "templates": [{"kind": "Deployment", "metadata": metadata, **template}],
            "customize": {"clusters": list(customize)},
        },
        "status": {"clusters": [{"name": name, "state": state} for name in ("eu1", "us1")]},
    }


def action(path: str, **entry: Any) -> dict[str, Any]:
    return {"action": [{"op": "replace", "path": path, "value": 5}], **(entry or {"name": "eu1"})}


ROLLING = {
    "phase": "Progressing",
    "waves": [
        {"phase": "Passed", "clusters": ["eu1"]},
        {"phase": "Waiting", "clusters": ["us1"]},
    ],
}
SELECTED = {"clusterSelector": {"matchLabels": {"region": "eu"}}}
NO_SUCH = {"clusterSelector": {"matchExpressions": [{"key": "region", "operator": "DoesNotExist"}]}}
REASONS: list[tuple[dict[str, Any], str, str]] = [
    (resource(), "spec.replicas", ""),
    (resource(spec={"replicas": "${cluster.labels.size}"}), "spec.replicas", "template"),
    (resource(spec={"replicas": "$${cluster.labels.size}"}), "spec.replicas", ""),
    (resource(spec={"replicas": "${vars.size}"}), "spec.replicas", ""),
    (resource(spec={"a": {"b": "x-${cluster.name}"}}), "spec.a", "template"),
    (resource(spec={"a": "${cluster.name}"}), "spec.b", ""),
    (resource([action("/spec/replicas")]), "spec.replicas", "customize"),
    (resource([action("/spec/replicas")]), "spec.paused", ""),
    (resource([action("/spec/replicas")], state="Drifted"), "spec.replicas", ""),
    (resource([action("/spec/replicas", name="ap1")]), "spec.replicas", ""),
    (resource([action("/spec/replicas", **SELECTED)]), "spec.replicas", "customize"),
    (resource([action("/spec/replicas", **NO_SUCH)]), "spec.replicas", ""),
    (resource([action("/spec/template")]), IMAGE, "customize"),
    (resource([action("/spec/x", target={"kind": "Service"}, name="eu1")]), "spec.x", ""),
    (resource([action("/metadata/labels/a.b~1c")]), "metadata.labels['a.b/c']", "customize"),
    (resource([action("/metadata/labels/a.b~1c")]), "metadata.labels.a.b/c", "customize"),
    (resource([{"name": "eu1", "merge": {"spec": {"x": None}}}]), "spec.x", "customize"),
    (resource([{"name": "eu1", "merge": {"spec": {"x": 1}}}]), "spec.y", ""),
    (resource([{"name": "eu1", "merge": LIST}]), IMAGE, "customize"),
    ({**resource(), "status": {**resource()["status"], "rollout": ROLLING}}, IMAGE, "rollout"),
    (
        {**resource(), "status": {"clusters": [], "rollout": {**ROLLING, "phase": "Failed"}}},
        IMAGE,
        "",
    ),
    ({"spec": {"templates": None, "customize": 5}, "status": {"clusters": []}}, IMAGE, ""),
]


async def test_what_a_multi_cluster_resource_intends(api: QueryApi, page: Page):
    await page.open(api.url)
    clusters = [
        {"name": "eu1", "labels": {"region": "eu"}},
        {"name": "us1", "labels": {"region": "us"}},
    ]
    about = {"kind": "Deployment", "namespace": "prod", "name": "web"}
    folder = "document.querySelector('script[src]').src.replace('app.js', '')"
    for mcr, path, reason in REASONS:
        words = ", ".join(map(json.dumps, (mcr, about, path, clusters)))
        code = f"import({folder} + 'intent.js').then((m) => m.reasonOf({words}))"
        assert await page.evaluate(code) == reason, (mcr, path)


async def put(api: QueryApi, cluster: str, key: str, name: str, uid: str, **tree: Any) -> None:
    metadata = {"name": name, "namespace": "prod", "uid": uid, **tree.pop("metadata", {})}
    body = json.dumps({"metadata": metadata, **tree}).encode()
    await api.add_body(cluster, key, name, body, uid=uid)


def owned(kind: str, uid: str) -> dict[str, Any]:
    version = "v1" if kind == "Pod" else "apps/v1"
    return {"ownerReferences": [{"kind": kind, "apiVersion": version, "name": "web", "uid": uid}]}


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """A Deployment of a MultiClusterResource in two of three clusters, with a Pod that fails."""
    await api.add_cluster("hub", MCR, hub=True)
    keys = ("apps/deployments", "apps/replicasets", "core/pods", "core/events")
    for name in ("eu1", "us1", "ap1"):
        await api.add_cluster(name, *keys)
    mark = {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "MultiClusterResource",
        "namespace": "prod",
        "name": "web",
        "uid": "mcr",
        "clusterName": "hub",
    }
    intent = resource([action("/spec/replicas")])
    correction = "Deployment prod/web: .spec.paused was changed by kubectl-edit"
    intent["status"]["clusters"][0]["lastCorrection"] = correction
    await put(api, "hub", MCR, "web", "mcr", **intent)
    for name, replicas in (("eu1", 5), ("us1", 2)):
        annotations = {"fleetbus.dev/owner": json.dumps(mark)}
        metadata = {"annotations": annotations, "labels": {"fleetbus.dev/owner-uid": "mcr"}}
        spec = {"replicas": replicas}
        uid = f"d-{name}"
        await put(api, name, "apps/deployments", "web", uid, metadata=metadata, spec=spec)
    await put(api, "eu1", "apps/replicasets", "web-1", "r", metadata=owned("Deployment", "d-eu1"))
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    status = {"phase": "Pending", "containerStatuses": [{"ready": False, "state": waiting}]}
    metadata = owned("ReplicaSet", "r")
    spec = {"containers": [{"name": "c"}]}
    await put(api, "eu1", "core/pods", "web-1-a", "p", metadata=metadata, spec=spec, status=status)
    about = {"uid": "d-eu1"}
    words = {"type": "Warning", "reason": "Odd", "message": "it is odd"}
    await put(api, "eu1", "core/events", "web.1", "e", involvedObject=about, **words)
    return api


def shows(text: str) -> str:
    return f"document.querySelector('#main').innerText.includes({json.dumps(text)})"


async def test_an_object_of_a_multi_cluster_resource(fleet: QueryApi, page: Page):
    await page.open(f"{fleet.url}{OBJECT}&tab=compare")
    await page.until(shows("all of them as its MultiClusterResource intends"))
    text = (await page.text()).replace("\n", " ")
    assert "drift corrected" in text
    assert ".spec.paused was changed by kubectl-edit" in text
    assert "not placed there ap1" in text
    await page.open(f"{fleet.url}{OBJECT}&tab=tree")
    await page.until("document.querySelector('.tree')?.innerText.includes('ImagePullBackOff')")
    lines = "[...document.querySelectorAll('.tree [data-row]')]"
    first, *others = await page.evaluate(f"{lines}.map((one) => one.innerText)")
    assert first.startswith("MultiClusterResource web hub")
    assert all(name in line for name, line in zip(("web", "web-1", "web-1-a"), others, strict=True))
    depths = "(one) => { let n = 0; while ((one = one.closest('ul')?.parentNode)) n++; return n; }"
    assert await page.evaluate(f"{lines}.map({depths})") == [1, 2, 3, 4]
    await page.open(f"{fleet.url}{OBJECT}&tab=events")
    await page.until(shows("it is odd"))
    await page.open(fleet.url)
    await page.until("document.querySelector('.findings details')?.innerText.includes('intend')")
    await page.until(shows("Nothing else differs."))
    page.errors = [error for error in page.errors if "/fleet/v1/history" not in error]


CHANGES: dict[str, Any] = {
    "from": "2026-01-01T10:00:00Z",
    "to": "2026-01-01T11:00:00Z",
    "changedObjects": 1,
    "ownedObjects": 0,
    "groupCount": 1,
    "truncated": False,
    "undetermined": [
        {
            "cluster": "eu1",
            "resource": "core/configmaps",
            "namespace": "prod",
            "name": name,
            "reason": "seen by a list",
            "knownFrom": f"2026-01-01T{hour}:00:00Z",
        }
        for name, hour in (("a", 10), ("b", 11), ("c", 10))
    ],
    "window": {"from": "2026-01-01T00:00:00Z", "gaps": []},
    "groups": [
        {
            "resource": {"group": "apps", "plural": "deployments", "kind": "Deployment"},
            "namespace": "shop",
            "name": "web",
            "change": "modified",
            "differences": [],
            "clusters": ["eu1"],
            "others": [],
            "moreDifferences": 0,
            "writtenBy": {"namespace": "shop", "name": "web-everywhere"},
        }
    ],
    "distribution": [
        {
            "owner": {"namespace": "shop", "name": "<img src=x onerror=window.broken=1>"},
            "event": "corrected",
            "clusters": ["eu1"],
            "revision": 3,
            "wave": "canary",
            "objects": [
                {"object": "Deployment shop/web", "field": ".spec.x", "manager": "kubectl-edit"}
            ],
            "moreObjects": 2,
            "reason": "",
            "message": "",
            "count": 4,
            "first": "2026-01-01T10:01:00Z",
            "last": "2026-01-01T10:31:00Z",
        }
    ],
    "distributionCount": 3,
}


async def test_changes_show_what_the_distributor_did(api: QueryApi, page: Page):
    answer = json.dumps(json.dumps(CHANGES))
    source = f"""
      const real = fetch;
      window.fetch = (url, ...more) => String(url).startsWith('/fleet/v1/changes')
        ? Promise.resolve(new Response({answer})) : real(url, ...more);
    """
    await page.call("Page.addScriptToEvaluateOnNewDocument", source=source)
    await page.open(f"{api.url}/changes")
    await page.until(shows("of MultiClusterResource shop/web-everywhere"))
    text = (await page.text()).replace("\n", " ")
    assert "corrected by MultiClusterResource shop/<img src=x" in text
    assert "revision 3 wave canary in eu1" in text
    assert "Deployment shop/web.spec.x by kubectl-edit" in text
    assert "and 2 more objects" in text
    assert "and 2 earlier reports" in text
    assert "whether 3 objects changed; all is known from" in text
    assert await page.evaluate("window.broken ?? null") is None


async def test_a1_rollouts_shows_no_members_multiclusterresource_as_one_of_the_hub(
    api: QueryApi, page: Page
):
    """Whoever sees no hub was shown those of all members."""
    await api.add_cluster("eu1", MCR)
    await api.add("eu1", MCR, "namesake", namespace="prod")
    await page.open(f"{api.url}/rollouts")
    await page.until(shows("The hub has no MultiClusterResource that you may list."))
    assert "namesake" not in await page.text()
    await page.open(f"{api.url}/rollouts?namespace=prod&name=namesake")
    await page.until(shows("The hub has no such MultiClusterResource"))
