"""The gate `quiet` on emulated clusters: what counts as trouble, and what it says about it."""

from __future__ import annotations

from collections.abc import Callable

from fleetbus.kube.client import KubeClient
from fleetbus_distributor.plan.intent import Inventory, Owned
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.rollout.quiet import look
from fleetbus_emulator.apiserver import Fail
from support.rigs.distributor import POD, Object, Rig

WEB = ObjectRef("apps/v1", "Deployment", "default", "web")
EVENTS, PODS = "v1/events", "v1/pods"


def ours(*clusters: str) -> Inventory:
    return {name: {WEB.key: Owned(WEB, "u")} for name in clusters}


def clients(rig: Rig) -> Callable[[str], KubeClient]:
    return lambda name: rig.fleet.cluster(name).live


def warn(rig: Rig, cluster: str, about: str, kind: str = "Warning", count: int = 1) -> Object:
    event = {
        "metadata": {"name": f"{about}.{rig.clusters[cluster].resource_version}"},
        "involvedObject": {"kind": "Pod", "name": about, "namespace": "default"},
        "reason": "BackOff",
        "message": "hunter2-canary",
        "type": kind,
        "count": count,
    }
    return rig.clusters[cluster].create(EVENTS, event, "default")


async def test_new_warnings_about_ours_are_news_and_old_ones_are_not(rig: Rig):
    old = warn(rig, "t1", "web-1-a")
    first = await look(clients(rig), ours("t1", "t2"), ["t1", "t2"], {})
    assert first.is_news
    again = await look(clients(rig), ours("t1", "t2"), ["t1", "t2"], first.seen)
    assert (again.is_news, again.message) == (False, "")
    warn(rig, "t2", "other-1-a")
    warn(rig, "t2", "web-1-b", kind="Normal")
    assert not (await look(clients(rig), ours("t1", "t2"), ["t1", "t2"], again.seen)).is_news
    warn(rig, "t2", "web-1-b")
    news = await look(clients(rig), ours("t1", "t2"), ["t1", "t2"], again.seen)
    assert (news.is_news, news.message) == (True, "last trouble: t2: Pod web-1-b: BackOff")
    old["count"] = 2
    rig.clusters["t1"].update(EVENTS, old)
    assert (await look(clients(rig), ours("t1", "t2"), ["t1", "t2"], news.seen)).is_news


async def test_what_expires_is_no_news(rig: Rig):
    event = warn(rig, "t1", "web-1-a")
    first = await look(clients(rig), ours("t1"), ["t1"], {})
    rig.clusters["t1"].delete(EVENTS, "default", event["metadata"]["name"])
    later = await look(clients(rig), ours("t1"), ["t1"], first.seen)
    assert not later.is_news
    assert later.seen == {"t1": ""}


async def test_a_restart_of_a_container_is_news(rig: Rig):
    pod = {**POD, "metadata": {"name": "web-1-a", "namespace": "default"}}
    pod_object = rig.clusters["t1"].create(PODS, pod)
    first = await look(clients(rig), ours("t1"), ["t1"], {})
    assert not first.is_news
    container = {"name": "busybox", "image": "b", "imageID": "", "ready": True, "restartCount": 1}
    rig.clusters["t1"].update_status(
        PODS, {**pod_object, "status": {"containerStatuses": [container]}}
    )
    news = await look(clients(rig), ours("t1"), ["t1"], first.seen)
    assert (news.is_news, news.message) == (True, "last trouble: t1: Pod web-1-a: restarted")


async def test_d14_a_cluster_that_cannot_be_read_is_named_without_its_words(rig: Rig):
    rig.clusters["t2"].faults.add(Fail(403), verb="list", resource="events")
    news = await look(clients(rig), ours("t1", "t2"), ["t1", "t2"], {})
    assert news.message == "t2: its Warning events and Pods cannot be read (Forbidden)"
    assert news.seen == {}
