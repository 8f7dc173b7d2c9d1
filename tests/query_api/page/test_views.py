"""The page in a browser: each view has an address, and shows what the API answers, as text."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import typer.main

from fleetbus.reconcile import Request
from fleetbus.snapshot.records import AgentContact
from fleetbus.workqueue import Add
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_cli.app import app
from support.processes.chromium import needs_chromium
from support.rigs.query_api import ago

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from support.processes.chromium import Page
    from support.rigs.query_api import QueryApi

pytestmark = needs_chromium

MCR = "fleetbus.dev/multiclusterresources"
KINDS = ("core/pods", "core/configmaps", "apps/deployments")
HOSTILE = '<img src=x onerror="window.broken=1"><svg onload="window.broken=2">'


def deployment(image: str, **more: Any) -> dict[str, Any]:
    container = {"name": "web", "image": image}
    spec = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {**spec, **more}}


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """Three members, one of them silent and with another image, and a hub."""
    await api.add_cluster("hub", *KINDS, MCR, hub=True, server_version="v1.34.1")
    for name in ("eu1", "eu2", "us1"):
        ago = 300 if name == "us1" else 1
        version = "v1.33.0" if name == "us1" else "v1.34.1"
        labels = {"region": name[:2]}
        await api.add_cluster(name, *KINDS, reported_ago=ago, server_version=version, labels=labels)
        image = "nginx:1.28" if name == "eu1" else "nginx:1.27"
        await api.add(name, "apps/deployments", "web", **deployment(image))
        for number in range(3):
            await api.add(name, "core/pods", f"web-{number}", labels={"app": "web"})
    waves = [
        {"name": "canary", "phase": "Passed", "clusters": ["eu1"], "ready": 1},
        {"name": "rest", "phase": "Open", "clusters": ["eu2", "us1"], "ready": 1},
    ]
    rollout = {"phase": "Progressing", "revision": 2, "previous": 1, "waves": waves}
    states = [
        {"name": "eu1", "state": "Applied", "health": "Healthy"},
        {"name": "us1", "state": "Unreachable", "message": "no answer"},
    ]
    hold = {"reason": "ManyClusters", "planHash": "abc", "objects": 7, "clusters": ["eu1", "us1"]}
    status = {"rollout": rollout, "clusters": states, "held": hold, "summary": {"ready": "1/3"}}
    await api.add("hub", MCR, "web", namespace="shop", status=status)
    return api


async def test_the_fleet_is_seen_at_a_glance_with_what_differs(fleet: QueryApi, page: Page):
    await page.open(fleet.url)
    await page.until("document.querySelector('#main').innerText.includes('Deployment prod/web')")

    text = await page.text()
    assert "v1.33.0" in text
    assert "region=eu" in text
    assert "us1 runs v1.33.0" in text
    assert "nginx:1.27 → nginx:1.28" in text.replace("\n", " ")
    assert "may lack something: us1" in text
    assert "fleetbus clusters" in text
    assert await page.evaluate("document.querySelectorAll('[data-cluster]').length") == 4


ACCESS = """[...document.querySelectorAll('[data-cluster]')].map((row) => [
    row.dataset.cluster,
    row.cells[3].innerText.replace(/\\s+/g, ' ').trim(),
    row.cells[3].title,
])"""
"""Cluster, text and hint of each cell below `Access`."""


async def test_the_way_to_each_api_server_is_shown_and_which_agent_is_away(
    api: QueryApi, page: Page
):
    away = AgentContact(reason="AgentNotConnected", message=HOSTILE)
    await api.add_cluster("eu1")
    for name, agent in (
        ("eu2", AgentContact(connected=True, answered_at=ago(7200))),
        ("us1", away),
    ):
        await api.add_cluster(name, access="Agent", agent=agent)
    await page.open(api.url)
    await page.until("document.querySelectorAll('[data-cluster]').length === 3")
    heads = "[...document.querySelectorAll('thead th')].map((one) => one.innerText)"
    assert (await page.evaluate(heads))[3] == "Access"
    assert await page.evaluate(ACCESS) == [
        ["eu1", "Direct", ""],
        ["eu2", "Agent 2h ago", ""],
        ["us1", "Agent not connected never", HOSTILE],
    ]
    assert await page.evaluate("window.broken ?? 0") == 0


@pytest.mark.slow
async def test_the_foot_names_the_release_that_answers(fleet: QueryApi, page: Page):
    await page.open(fleet.url)
    await page.until("document.querySelector('#release').innerText")
    shown = await page.evaluate("document.querySelector('#release').innerText")
    assert shown == f"fleetbus {version('fleetbus-sdk')}"


COMMANDS = "[...document.querySelectorAll('.command code')].map((one) => one.innerText)"


def check_commands(commands: list[str]) -> None:
    """Each command of ours is one that the command line takes."""
    assert commands
    for command in commands:
        program, *words = shlex.split(command)
        if program == "fleetbus":
            group: Any = typer.main.get_command(app)
            while words and words[0] in getattr(group, "commands", ()):
                group = group.commands[words.pop(0)]
            group.make_context(command, words)


ADDRESSES = {
    "/": ("eu1", "fleetbus clusters"),
    "/search?resource=po&cluster=eu1&labelSelector=app%3Dweb": (
        "web-2",
        "fleetbus get po -l app=web --cluster eu1",
    ),
    "/search?where=web": ("prod/web", "/fleet/v1/where?name=web"),
    "/search": ("ConfigMap", "fleetbus api-resources"),
    "/object?resource=deployments.apps&namespace=prod&name=web": (
        "spec.template.spec.containers[0].image",
        "fleetbus describe deployments.apps web -n prod",
    ),
    "/object?resource=deployments.apps&namespace=prod&name=web&cluster=eu1&tab=yaml": (
        "image: nginx:1.28",
        "fleetbus get deployments.apps web -n prod --cluster eu1 -o yaml",
    ),
    "/object?resource=deployments.apps&namespace=prod&name=web&tab=tree": (
        "Nothing owns it, and it owns nothing",
        "/fleet/v1/owners/",
    ),
    "/live?resource=pods": ("4 clusters, 3 complete", "fleetbus events pods --follow"),
    "/changes?since=5m&resource=pods&cluster=eu1,us1&owned=1": (
        "503",
        "fleetbus diff pods --since 5m --cluster eu1 --cluster us1 --owned",
    ),
    "/object?resource=deployments.apps&namespace=prod&name=web&cluster=eu1&tab=timeline": (
        "503",
        "fleetbus timeline eu1 deployments.apps prod/web --since 24h",
    ),
    "/queues": ("copier", "fleetbus queue"),
    "/rollouts": ("shop/web", "fleetbus get mcr -o wide"),
    "/rollouts?namespace=shop&name=web": ("2. rest", "fleetbus rollout status shop/web"),
}


@pytest.mark.slow
async def test_each_view_opens_by_its_address_and_says_the_command(
    fleet: QueryApi, page: Page, redis: Redis
):
    queue = RedisQueue(redis, "copier")
    await queue.add([Add(Request("copier", "eu1", "prod", "a"))])
    for address, (caption, command) in ADDRESSES.items():
        await page.open(f"{fleet.url}{address}")
        for text in (caption, command):
            condition = f"document.querySelector('#main').innerText.includes({json.dumps(text)})"
            await page.until(condition)
        check_commands(await page.evaluate(COMMANDS))
    await queue.aclose()
    # There is no NATS here, and so no history.
    page.errors = [error for error in page.errors if " 503 " not in error]


WORKLOAD = "/object?resource=deployments.apps&namespace=prod&name=w&cluster=eu1"


async def add_hostile_workload(api: QueryApi) -> None:
    """A Deployment of the MultiClusterResource with a Pod and an Event, all of hostile texts."""
    owner = {
        "apiVersion": HOSTILE,
        "kind": "MultiClusterResource",
        "namespace": "prod",
        "name": "web",
        "uid": "mcr",
        "clusterName": "hub",
    }
    for cluster in ("eu1", "us1"):
        metadata = {
            "name": "w",
            "namespace": "prod",
            "uid": f"w-{cluster}",
            "annotations": {
                "fleetbus.dev/owner": json.dumps(owner),
                HOSTILE: f"{HOSTILE}{cluster}",
            },
        }
        body = json.dumps({"metadata": metadata, "spec": {HOSTILE: [cluster]}}).encode()
        await api.add_body(cluster, "apps/deployments", "w", body, uid=f"w-{cluster}")
    references = [{"uid": "w-eu1", "kind": HOSTILE, "name": HOSTILE, "apiVersion": "apps/v1"}]
    pod = {
        "metadata": {
            "name": HOSTILE,
            "namespace": "prod",
            "uid": "p",
            "ownerReferences": references,
        },
        "status": {"phase": HOSTILE, "reason": HOSTILE},
    }
    await api.add_body("eu1", "core/pods", HOSTILE, json.dumps(pod).encode(), uid="p")
    texts = ("type", "reason", "message", "lastTimestamp", "count")
    event: dict[str, Any] = {
        **dict.fromkeys(texts, HOSTILE),
        "involvedObject": {"uid": "w-eu1"},
        "source": {"component": HOSTILE},
    }
    await api.add("eu1", "core/events", HOSTILE, **event)


@pytest.mark.slow
async def test_what_a_cluster_says_is_text_and_never_html(api: QueryApi, page: Page):
    await api.add_cluster("hub", *KINDS, MCR, hub=True)
    labels = {"app": HOSTILE, HOSTILE: "x"}
    watched = (*KINDS, "core/events")
    await api.add_cluster("eu1", *watched, labels=labels, server_version=HOSTILE, message=HOSTILE)
    await api.add_cluster("us1", *KINDS)
    for cluster in ("eu1", "us1"):
        annotations = {"note": f"{HOSTILE} {cluster}"}
        tree: dict[str, Any] = {"data": {HOSTILE: f"{HOSTILE}{cluster}"}, "kind": HOSTILE}
        await api.add(cluster, "core/configmaps", HOSTILE, labels=labels, **tree)
        await api.add_body(
            cluster,
            "core/configmaps",
            "c",
            json.dumps({"metadata": {"name": "c", "annotations": annotations}, **tree}).encode(),
        )
        await api.add(cluster, "core/pods", HOSTILE, status={"phase": HOSTILE})
    entries = [
        {"name": name, "state": HOSTILE, "message": HOSTILE, "lastCorrection": HOSTILE}
        for name in (HOSTILE, "eu1", "us1")
    ]
    status = {"clusters": entries, "conditions": [dict.fromkeys(("type", "message"), HOSTILE)]}
    await api.add("hub", MCR, "web", uid="mcr", status=status, spec={"templates": [HOSTILE]})
    await add_hostile_workload(api)

    name = quote(HOSTILE, safe="")
    for address, selector in {
        "/": ".findings .field",
        "/search?resource=pods": ".row",
        "/search?resource=cm&wide=1": ".row",
        f"/search?where={name}": "tbody tr",
        "/object?resource=cm&namespace=prod&name=c": ".diff td",
        "/object?resource=cm&namespace=prod&name=c&tab=yaml": ".yaml .key",
        f"/object?resource=cm&namespace=prod&name={name}": "h1",
        "/rollouts?namespace=prod&name=web": "tbody tr",
        f"{WORKLOAD}&tab=compare": ".managed",
        f"{WORKLOAD}&tab=tree": ".tree ul .badge",
        f"{WORKLOAD}&tab=events": "tbody tr",
    }.items():
        await page.open(f"{api.url}{address}")
        await page.until(f"document.querySelector('#main {selector}')")
        assert await page.evaluate("window.broken ?? null") is None, address
        assert await page.evaluate("document.querySelectorAll('#main img,svg').length") == 0
        assert await page.evaluate("document.querySelectorAll('main script').length") == 0
        assert "<img src=x" in await page.text(), address
    page.errors = [error for error in page.errors if "/fleet/v1/history" not in error]


async def test_live_events_come_and_can_be_held(fleet: QueryApi, page: Page):
    await page.open(f"{fleet.url}/live?resource=pods")
    await page.until("document.querySelector('#main').innerText.includes('3 complete')")
    await fleet.add("eu1", "core/pods", "late")
    await page.until("document.querySelector('.live').innerText.includes('prod/late')")
    await page.press(" ")
    await page.until("document.querySelector('.bar').innerText.includes('held: 0')")
    await fleet.add("eu1", "core/pods", "later")
    await page.until("document.querySelector('.bar').innerText.includes('held: 1')")
    assert "prod/later" not in await page.text(".live")
    await page.press(" ")
    await page.until("document.querySelector('.live').innerText.includes('prod/later')")
