"""Churn: repeatable changes in the wanted mix, within the process and over HTTP."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter, defaultdict
from typing import Any

import orjson
import pytest

from emulator.support.kube_calls import Calls
from fleetbus_emulator.apiserver import ApiError, Cluster, Commit
from fleetbus_emulator.generate import Churn, Mix, Verb, Write, fill
from support.eventually import eventually

CANARY = "canary-55"


def _filled(objects: int = 300) -> Cluster:
    cluster = Cluster("alpha")
    fill(cluster, objects=objects, seed=1)
    return cluster


def _named(write: Write) -> tuple[Any, ...]:
    return write.verb, write.gvr, write.namespace, write.name


def _of(commit: Commit) -> tuple[str, ...]:
    return commit.type, commit.resource, commit.namespace, commit.name


def test_the_same_seed_makes_the_same_writes():
    first, other = Churn(_filled(), seed=5), Churn(_filled(), seed=5)
    assert [_named(first.step()) for _ in range(120)] == [_named(other.step()) for _ in range(120)]


def test_another_seed_makes_others():
    first, other = Churn(_filled(), seed=5), Churn(_filled(), seed=6)
    assert [_named(first.step()) for _ in range(20)] != [_named(other.step()) for _ in range(20)]


def test_eight_of_ten_writes_are_updates_and_some_names_come_back_as_other_objects():
    cluster = _filled()
    counts = Churn(cluster, seed=2).run(400)
    assert counts[Verb.UPDATE] == pytest.approx(320, abs=30)
    assert counts[Verb.CREATE] == pytest.approx(40, abs=20)
    assert counts[Verb.DELETE] == pytest.approx(40, abs=20)
    uids: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for commit in cluster.history:
        uids[commit.resource, commit.namespace, commit.name].add(commit.uid)
    assert sum(len(uids_of_name) > 1 for uids_of_name in uids.values()) >= 5


def test_few_objects_change_often():
    cluster = _filled()
    Churn(cluster, seed=2, mix=Mix(update=1, create=0, delete=0), only=("v1/pods",)).run(300)
    changed = Counter(_of(commit) for commit in list(cluster.history)[-300:])
    assert changed.most_common(1)[0][1] > 20
    assert len(changed) > 40


def test_every_write_is_committed():
    cluster = _filled()
    churn = Churn(cluster, seed=9)
    types = {Verb.UPDATE: "MODIFIED", Verb.CREATE: "ADDED", Verb.DELETE: "DELETED"}
    for _ in range(150):
        write = churn.step()
        assert _of(cluster.history[-1])[0] == types[write.verb]
        assert _of(cluster.history[-1])[2:] == (write.namespace, write.name)


def test_planned_writes_can_be_sent_by_any_client():
    within, over_http = _filled(), _filled()
    calls, planned = Calls(over_http), Churn(over_http, seed=4)
    Churn(within, seed=4).run(150)
    for _ in range(150):
        request = planned.plan().request()
        path, _, query = request.path.partition("?")
        options = dict(pair.split("=") for pair in query.split("&"))
        body = orjson.loads(request.body) if request.body else None
        reply = calls.call(
            request.method,
            path,
            body,
            content=request.content_type or "application/json",
            **options,
        )
        assert reply.status in (200, 201), reply.document
    assert [_of(c) for c in over_http.history] == [_of(c) for c in within.history]


def test_new_secrets_hold_the_canary():
    cluster = _filled()
    Churn(cluster, seed=1, mix=Mix(update=0, delete=0), only=("v1/secrets",), canary=CANARY).run(5)
    commits = list(cluster.history)[-5:]
    for commit in commits:
        secret = cluster.get("v1/secrets", commit.namespace, commit.name)
        assert secret is not None
        assert base64.b64decode(secret["data"]["canary"]).decode() == CANARY


def test_what_others_delete_meanwhile_is_passed_over():
    cluster = _filled()
    churn = Churn(cluster, seed=3, mix=Mix(create=0, delete=1), only=("v1/configmaps",))
    names = cluster.names("v1/configmaps")
    for namespace, name in names[::2]:
        cluster.delete("v1/configmaps", namespace, name)
    assert churn.run(60).total() == 60


def test_an_empty_cluster_gets_objects():
    cluster = Cluster("alpha")
    assert Churn(cluster, seed=1).run(60)[Verb.CREATE] > 2
    assert {commit.type for commit in cluster.history} == {"ADDED", "MODIFIED", "DELETED"}


def test_a_cluster_without_anything_to_change_says_so():
    churn = Churn(Cluster("alpha"), only=("coordination.k8s.io/v1/leases",))
    with pytest.raises(LookupError, match="cluster alpha: there is nothing to change"):
        churn.step()


def test_a_cluster_that_refuses_everything_says_why():
    cluster = Cluster("alpha")
    churn = Churn(cluster, mix=Mix(update=0, delete=0), only=("v1/configmaps",))
    cluster.delete("v1/namespaces", None, "default")
    with pytest.raises(ApiError, match=r"being terminated|not found"):
        churn.step()


def test_unknown_types_and_rates_are_refused():
    with pytest.raises(ValueError, match=r"only: \['v1/pod'\] are none of v1/pods"):
        Churn(Cluster("alpha"), only=("v1/pod",))
    with pytest.raises(ValueError, match="above 0, not 0"):
        asyncio.run(Churn(Cluster("alpha")).drive(0))


@pytest.mark.parametrize("update", [-1, 0])
def test_a_mix_of_nothing_or_less_is_refused(update: float):
    with pytest.raises(ValueError, match="a mix has no negative shares, and one above 0"):
        Mix(update=update, create=0, delete=0)


async def test_a_driven_cluster_changes_at_the_rate_and_no_faster():
    cluster = _filled(100)
    loop, before = asyncio.get_running_loop(), len(cluster.history)
    begun = loop.time()
    task = asyncio.create_task(Churn(cluster, seed=1).drive(400))
    await eventually(lambda: len(cluster.history) >= before + 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    changes = list(cluster.history)[before:]
    # The end of a pod is two writes: it is marked, and it goes.
    ends = sum(c.type == "DELETED" and c.resource == "pods" for c in changes)
    assert len(changes) - ends <= (loop.time() - begun) * 400 + 1
