"""`fleetbus get -w`: what there is, then each change, in every form of `-o` (A5, T19)."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

from support.eventually import eventually
from support.processes.following import following
from support.rigs.query_api import QueryApi, served
from support.servers.plain_http import http_client
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from redis.asyncio import Redis

    from support.processes.following import Following

    Get = Callable[..., AbstractAsyncContextManager[Following]]

PODS = "core/pods"
FLEETBUS = str(Path(sys.executable).parent / "fleetbus")


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    for name in ("c1", "c2", "c3"):
        await api.add_cluster(name)
    await api.add("c1", PODS, "a", labels={"app": "web"}, status={"phase": "Pending"})
    return api


@pytest.fixture
def get(api: QueryApi, tmp_path: Path) -> Get:
    return lambda *arguments: following(api.url, tmp_path, (FLEETBUS, "get", *arguments))


async def remove(api: QueryApi, cluster: str, name: str) -> None:
    """Delete a pod, and tell its last state."""
    api.version += 1
    last = b'{"metadata":{"name":"%b","namespace":"prod"}}' % name.encode()
    source = Source(cluster=cluster, group="core", resource="pods")
    await api.snapshot.apply(source.deleted(name, api.version, namespace="prod", body=last))


async def test_t19_tables_go_on_with_a_row_for_each_change(fleet: QueryApi, get: Get):
    async with get("pods", "-w") as running:
        assert (await running.row())[:4] == ["CLUSTER", "NAMESPACE", "NAME", "READY"]
        before = await running.line()
        assert before.split()[:5] == ["c1", "prod", "a", "0/0", "Pending"]
        await fleet.add("c1", PODS, "a", status={"phase": "Running"})
        changed = await running.line()
        assert changed.split()[:5] == ["c1", "prod", "a", "0/0", "Running"]
        assert changed.index("0/0") == before.index("0/0")
        await fleet.add("c2", PODS, "b", status={"phase": "Running"})
        assert (await running.row())[:5] == ["c2", "prod", "b", "0/0", "Running"]
        await remove(fleet, "c1", "a")
        gone = await running.row()
        assert (gone[:3], gone[-1]) == (["c1", "prod", "a"], "(deleted)")
        assert await running.end() == (130, "")


async def test_t19_one_cluster_wide_with_labels_and_events(fleet: QueryApi, get: Get):
    options = ("-o", "wide", "--show-labels", "--output-watch-events", "-l", "app=web")
    async with get("po", "-w", "--cluster", "c1", *options) as running:
        head = await running.row()
        assert (head[:4], head[-1]) == (["EVENT", "CLUSTER", "NAMESPACE", "NAME"], "LABELS")
        assert "NODE" in head
        assert (await running.row())[:4] == ["ADDED", "c1", "prod", "a"]
        await fleet.add("c2", PODS, "elsewhere", labels={"app": "web"})
        await fleet.add("c1", PODS, "other", labels={"app": "db"})
        await fleet.add("c1", PODS, "a", labels={"app": "web", "x": "y"})
        row = await running.row()
        assert (row[:4], row[-1]) == (["MODIFIED", "c1", "prod", "a"], "app=web,x=y")
        await fleet.add("c1", PODS, "a", labels={"app": "db"})
        row = await running.row()
        assert (row[:4], "(deleted)" in row) == (["DELETED", "c1", "prod", "a"], False)


async def test_a5_only_what_was_asked_for_is_followed(fleet: QueryApi, get: Get):
    some = ("--cluster", "c1", "--cluster", "c2", "--field-selector", "status.phase=Running")
    async with get("pods", "--watch-only", *some, "-o", "name", "-n", "prod") as running:
        open_watches = "fleetbus_query_api_watches"
        await eventually(lambda: REGISTRY.get_sample_value(open_watches) == 1)
        await fleet.add("c1", PODS, "first", status={"phase": "Running"})
        assert await running.row() == ["c1/pods/prod/first"]
        await fleet.add("c3", PODS, "not-asked", status={"phase": "Running"})
        await fleet.add("c2", PODS, "pending", status={"phase": "Pending"})
        await fleet.add("c2", PODS, "far", namespace="test", status={"phase": "Running"})
        await fleet.add("c2", PODS, "last", status={"phase": "Running"})
        assert await running.row() == ["c2/pods/prod/last"]


async def test_t19_every_form_follows_one_object(fleet: QueryApi, get: Get):
    path = "jsonpath={.metadata.name}={.status.phase}{'\\n'}"
    columns = r"custom-columns=C:.metadata.annotations.fleetbus\.dev/cluster,P:.status.phase"
    async with AsyncExitStack() as exits:
        follow = [
            await exits.enter_async_context(get("pod/a", "-w", "-o", form))
            for form in ("json", "yaml", path, columns)
        ]
        tree, yaml, words, table = follow
        assert [await words.line(), await table.row()] == ["a=Pending\n", ["C", "P"]]
        assert await table.row() == ["c1", "Pending"]
        for _ in range(2):
            lines = [await yaml.line() for _ in range(2)]
            assert lines == ["---\n", "# cluster: c1\n"]
            content = await document(tree)
            assert (content["cluster"], content["object"]["metadata"]["name"]) == ("c1", "a")
            while "phase: " not in await yaml.line():
                pass
            if content["object"]["status"]["phase"] == "Pending":
                await fleet.add("c1", PODS, "other")
                await fleet.add("c1", PODS, "a", status={"phase": "Running"})
        assert [await words.line(), await table.row()] == ["a=Running\n", ["c1", "Running"]]


async def document(running: Following) -> dict[str, dict[str, dict[str, str]]]:
    """The next document of JSON."""
    lines = [await running.line()]
    while lines[-1] != "}\n":
        lines.append(await running.line())
    return json.loads("".join(lines))


@pytest.mark.slow
async def test_a5_nothing_is_lost_or_repeated_while_the_api_is_restarted(
    redis: Redis, valkey_url: str, tmp_path: Path
):
    snapshot = Snapshot(redis)
    await snapshot.set_up()
    async with AsyncExitStack() as exits:
        async with served(valkey_url, tmp_path) as url, http_client(url) as client:
            api = QueryApi(url, client, snapshot)
            await api.add_cluster("c1")
            await api.add("c1", PODS, "a")
            command = (FLEETBUS, "get", "pods", "-w", "--no-headers")
            running = await exits.enter_async_context(following(url, tmp_path, command))
            assert (await running.row())[2] == "a"
            await api.add("c1", PODS, "b")
            assert (await running.row())[2] == "b"
        (tmp_path / "query-api.port").unlink()
        await api.add("c1", PODS, "c")
        await remove(api, "c1", "a")
        async with served(valkey_url, tmp_path, port=int(url.rpartition(":")[2])):
            assert (await running.row())[2] == "c"
            assert (await running.row())[2::7] == ["a"]
            await api.add("c1", PODS, "d")
            assert (await running.row())[2] == "d"
            status, errors = await running.end()
    assert status == 130
    assert errors.count("\n") == errors.count("does not answer") == 1


FORMS = {
    "table": ("c1 prod a 0/0", "c1 prod b 0/0", "c1 prod d 0/0"),
    "name": ("c1/pods/prod/a", "c1/pods/prod/b", "c1/pods/prod/d"),
    "custom-columns=N:.metadata.name": ("a", "b", "d"),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
async def test_a5_after_a_longer_outage_only_what_changed_is_shown(
    form: str, redis: Redis, valkey_url: str, tmp_path: Path
):
    snapshot = Snapshot(redis)
    await snapshot.set_up()
    options = ("pods", "-w", "--no-headers", "--output-watch-events", "-o", form)
    async with AsyncExitStack() as exits:
        async with served(valkey_url, tmp_path) as url, http_client(url) as client:
            api = QueryApi(url, client, snapshot)
            await api.add_cluster("c1")
            for name in ("a", "b", "same"):
                await api.add("c1", PODS, name)
            running = await exits.enter_async_context(
                following(url, tmp_path, (FLEETBUS, "get", *options))
            )
            for _ in range(3):
                assert (await running.row())[0] == "ADDED"
            await api.add("c1", PODS, "watched")
            assert (await running.row())[0] == "ADDED"
        (tmp_path / "query-api.port").unlink()
        await remove(api, "c1", "a")
        await api.add("c1", PODS, "b", status={"phase": "Running"})
        await api.add("c1", PODS, "d")
        await snapshot.forget_changes()
        async with served(valkey_url, tmp_path, port=int(url.rpartition(":")[2])):
            shown_rows = [await running.row() for _ in range(3)]
            await api.add("c1", PODS, "after")
            assert (await running.row())[0] == "ADDED"
            status, errors = await running.end()
    gone, changed, new = FORMS[form]
    words = {"DELETED": gone, "MODIFIED": changed, "ADDED": new}
    assert sorted(row[0] for row in shown_rows) == sorted(words)
    for kind, *cells in shown_rows:
        assert " ".join(cells).startswith(words[kind])
    assert (status, errors.count("\n")) == (130, errors.count("does not answer"))


REFUSED = {
    ("pods,svc", "-w"): "one type, or one object",
    ("pod/a", "pod/b", "-w"): "one type, or one object",
    ("pods", "-w", "--limit", "3"): "--limit",
    ("pods", "--output-watch-events"): "--watch",
    ("pods", "-w", "-o", "jsonpath={.a[}"): "jsonpath",
}


@pytest.mark.usefixtures("fleet")
async def test_a_watch_of_anything_else_is_refused(get: Get, subtests: pytest.Subtests):
    for arguments, reason in REFUSED.items():
        with subtests.test(arguments=arguments, reason=reason):
            async with get(*arguments) as running:
                await running.process.wait()
                status, errors = await running.end()
            assert (status, errors.count("\n")) == (2, 1)
            assert reason in errors.lower()


@pytest.mark.usefixtures("fleet")
async def test_a_watch_of_what_does_not_exist_ends_at_once(get: Get):
    for arguments, reason in ((("pod/none",), "'none'"), (("secrets",), "not watched by default")):
        async with get(*arguments, "-w") as running:
            await running.process.wait()
            status, errors = await running.end()
        assert (status, reason in errors) == (1, True)
