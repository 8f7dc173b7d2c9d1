"""`fleetbus get`, `describe` and `clusters` against a served fleet."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fleetbus.errors import ConfigError
from fleetbus.process.human_time import render_duration
from fleetbus.snapshot import ResourceState
from fleetbus.snapshot.records import AgentContact
from fleetbus_cli import api_client
from fleetbus_query_api.tables.builtin import BUILTIN
from support.processes.in_process_commands import fleetbus
from support.rigs.query_api import Ended, ago

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.rigs.query_api import QueryApi

    Run = Callable[..., Awaitable[Ended]]

FLEETBUS = Path(sys.executable).parent / "fleetbus"
POD: dict[str, Any] = {
    "kind": "Pod",
    "spec": {"nodeName": "n1", "containers": [{"name": "web", "image": "nginx:1"}]},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "containerStatuses": [{"ready": True, "restartCount": 2, "state": {"running": {}}}],
    },
}


def call(argv: tuple[str, ...]) -> int:
    return fleetbus(*argv)


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    await api.add_cluster("c1", hub=True, server_version="v1.33.1")
    await api.add_cluster("c2")
    await api.add("c1", "core/pods", "web", labels={"app": "web"}, **POD)
    await api.add("c1", "core/pods", "db", namespace="test", **POD)
    await api.add("c2", "core/pods", "web", labels={"app": "web"}, **POD)
    return api


@pytest.fixture
def run(
    api: QueryApi,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    monkeypatch.setenv("FLEETBUS_API_URL", api.url)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def run_command(*argv: str) -> Ended:
        capsys.readouterr()
        status = await asyncio.to_thread(call, argv)
        return Ended.read(status, capsys)

    return run_command


@pytest.mark.usefixtures("fleet")
async def test_get_shows_the_columns_of_kubectl_after_cluster_namespace_and_name(run: Run):
    ended = await run("get", "pods")

    assert ended.status == 0
    assert ended.err == ""
    assert ended.rows[0] == ["CLUSTER", "NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [row[:6] for row in ended.rows[1:]] == [
        ["c1", "prod", "web", "1/1", "Running", "2"],
        ["c1", "test", "db", "1/1", "Running", "2"],
        ["c2", "prod", "web", "1/1", "Running", "2"],
    ]


@pytest.mark.usefixtures("fleet")
async def test_get_takes_the_options_of_kubectl(run: Run):
    cases = {
        ("web",): ["c1/web", "c2/web"],
        ("-n", "test"): ["c1/db"],
        ("-n", "test", "-A"): ["c1/web", "c1/db", "c2/web"],
        ("-l", "app=web"): ["c1/web", "c2/web"],
        ("-l", "app!=web"): ["c1/db"],
        ("--cluster", "c2"): ["c2/web"],
        ("--cluster", "c1", "--cluster", "c2", "-n", "prod"): ["c1/web", "c2/web"],
        ("--limit", "1"): ["c1/web"],
    }
    for argv, expected in cases.items():
        ended = await run("get", "po", *argv)
        assert [f"{row[0]}/{row[2]}" for row in ended.rows[1:]] == expected, argv


@pytest.mark.usefixtures("fleet")
async def test_get_wide_shows_more(run: Run):
    ended = await run("get", "pods", "-o", "wide", "--cluster", "c2")

    head, row = ended.rows
    assert head[6:9] == ["AGE", "IP", "NODE"]
    assert row[7:9] == ["10.0.0.1", "n1"]


@pytest.mark.usefixtures("fleet")
async def test_get_json_and_yaml_hide_managed_fields_unless_asked(run: Run):
    answer = json.loads((await run("get", "pods", "-o", "json")).out)
    documents = list(yaml.safe_load_all((await run("get", "pods", "-o", "yaml")).out))
    ended = await run("get", "pods", "-o", "yaml", "--show-managed-fields")

    assert [item["cluster"] for item in answer["items"]] == ["c1", "c1", "c2"]
    assert answer["incomplete"] == []
    assert [item["object"] for item in answer["items"]] == documents
    assert all("managedFields" not in tree["metadata"] for tree in documents)
    assert "managedFields" in ended.out


@pytest.mark.usefixtures("fleet")
async def test_get_name_prints_one_word_for_each_object(run: Run):
    ended = await run("get", "pods", "-o", "name")

    assert ended.out.split() == ["c1/pods/prod/web", "c1/pods/test/db", "c2/pods/prod/web"]


async def test_get_puts_all_pages_together(
    fleet: QueryApi, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(api_client, "PAGE", 2)
    await fleet.add("c2", "core/pods", "x", **POD)

    assert len((await run("get", "pods")).rows) == 5
    cut = await run("get", "pods", "--limit", "3")
    assert len(cut.rows) == 4
    assert "there are more" in cut.err


async def test_a_resource_without_a_namespace_has_no_such_column(api: QueryApi, run: Run):
    await api.add_cluster("c1", "core/nodes")
    record = (await api.snapshot.reader.resources("c1"))[0]
    cluster_scoped = type(record)(
        group="core",
        version="v1",
        plural="nodes",
        kind="Node",
        namespaced=False,
        state=ResourceState.SYNCED,
        last_received=record.last_received,
    )
    await api.snapshot.writer.put_resource_state("c1", cluster_scoped)
    await api.add("c1", "core/nodes", "n1", namespace="")

    ended = await run("get", "no")

    assert ended.rows[0] == ["CLUSTER", "NAME", "STATUS", "ROLES", "AGE", "VERSION"]


async def test_a4_get_says_which_cluster_is_behind_and_for_how_long(fleet: QueryApi, run: Run):
    await fleet.add_cluster("c2", reported_ago=200)

    ended = await run("get", "pods")

    assert ended.status == 0
    assert len(ended.rows) == 4
    assert re.fullmatch(
        r"warning: c2 is incomplete: its watcher has been silent for 2\d\d s; "
        r"its API server last answered 3m\d+s ago\n",
        ended.err,
    )


async def test_a4_get_warns_of_what_is_not_connected_or_not_synced_and_ends_well(
    fleet: QueryApi, run: Run
):
    message = "no answer from the API server: TimeoutError"
    await fleet.add_cluster("c2", reported_ago=40, connected=False, message=message)
    await fleet.add_cluster("c3", state=ResourceState.LISTING)
    await fleet.add_cluster("c4", state=ResourceState.STALE)

    ended = await run("get", "pods")
    answer = json.loads((await run("get", "pods", "-o", "json")).out)
    one = await run("get", "pods", "--cluster", "c1")

    assert ended.status == 0
    first, *others = ended.err.splitlines()
    assert re.fullmatch(
        r"warning: c2 is incomplete: no answer from the API server: TimeoutError; "
        r"its API server last answered 4\ds ago",
        first,
    )
    assert others == [
        "warning: c3 is incomplete: listing; its API server last answered 1s ago",
        "warning: c4 is incomplete: stale; its API server last answered 1s ago",
    ]
    assert answer["incomplete"] == ["c2", "c3", "c4"]
    assert answer["freshness"]["c2"]["ageSeconds"] >= 40
    assert one.err == ""


async def test_an_object_without_a_body_is_shown_with_a_warning(fleet: QueryApi, run: Run):
    await fleet.add_body("c2", "core/pods", "big", None, degraded="oversized")

    ended = await run("get", "pods", "big")

    assert ended.rows[1][:4] == ["c2", "prod", "big", "<unknown>"]
    assert "the snapshot has no body of c2/prod/big: oversized" in ended.err


@pytest.mark.usefixtures("fleet")
async def test_nothing_found_is_status_1_for_a_name_and_0_for_a_list(run: Run):
    named = await run("get", "pods", "nope", "-n", "prod")
    listed = await run("get", "pods", "-n", "nowhere")
    unknown = await run("get", "foos")

    assert (named.status, named.out) == (1, "")
    assert named.err == "fleetbus: no pods 'nope' in namespace prod\n"
    assert (listed.status, listed.out) == (0, "")
    assert listed.err == "No pods found in namespace nowhere.\n"
    assert unknown.status == 1
    assert "foos" in unknown.err


@pytest.mark.usefixtures("fleet")
async def test_bad_usage_is_a_config_error(run: Run):
    for argv, word in {
        ("get", "pods", "-o", "xml"): "xml",
        ("get", "pods", "-l", "a=b=c"): "label selector",
        ("get", "pods", "web", "-l", "a=b"): "--selector",
        ("get", "a..b"): "a..b",
        ("clusters", "-o", "xml"): "xml",
        ("clusters", "--api-url", "ftp://x"): "ftp://x",
    }.items():
        with pytest.raises(ConfigError, match=word):
            await run(*argv)


@pytest.mark.usefixtures("fleet")
async def test_an_api_that_does_not_answer_is_status_1_and_one_line(run: Run):
    for command in (("get", "pods"), ("describe", "pods", "web"), ("clusters",)):
        ended = await run(*command, "--api-url", "http://127.0.0.1:1")

        assert ended.status == 1
        assert "http://127.0.0.1:1 does not answer" in ended.err
        assert len(ended.err.splitlines()) == 1


@pytest.mark.usefixtures("fleet")
async def test_describe_names_the_cluster_of_each_hit(run: Run):
    ended = await run("describe", "pods", "web")

    assert [line for line in ended.out.splitlines() if line.startswith("#")] == [
        "# cluster: c1",
        "# cluster: c2",
    ]
    assert all(tree["metadata"]["name"] == "web" for tree in yaml.safe_load_all(ended.out))
    assert (await run("describe", "pods", "nope")).status == 1


async def test_clusters_shows_the_fleet(fleet: QueryApi, run: Run):
    labels = {"region": "eu", "fleetbus.dev/queue-weight": "5"}
    await fleet.add_cluster("c2", connected=False, reason="Unreachable", labels=labels)
    agent = AgentContact(reason="AgentNotConnected", message="no agent", answered_at=ago(90))
    await fleet.add_cluster("c3", reported_ago=200, access="Agent", agent=agent)

    ended = await run("clusters")
    asked_at = datetime.now(UTC)
    answer = json.loads((await run("clusters", "-o", "json")).out)

    heads = "NAME HUB ACCESS CONNECTED VERSION RESOURCES LAST ANSWER LAST CONTACT REASON LABELS"
    assert ended.rows[0] == heads.split()
    assert [row[:6] for row in ended.rows[1:]] == [
        ["c1", "yes", "Direct", "yes", "v1.33.1", "5/5"],
        ["c2", "no", "Direct", "no", "<unknown>", "0/5"],
        ["c3", "no", "Agent", "unknown", "<unknown>", "0/5"],
    ]
    assert [row[8] for row in ended.rows[1:3]] == ["-", "-"]
    assert ended.rows[3][9] == "ago"
    assert answer["items"][2]["agent"]["reason"] == "AgentNotConnected"
    assert answer["items"][0]["agent"] is None
    assert "watcher has been silent" in ended.out
    assert "; no agent" in ended.out
    described = await run("clusters", "c3")
    assert "Agent:        not connected; no agent" in described.out
    assert "Access:       Agent" in described.out
    assert ended.rows[2][-2:] == ["Unreachable", "fleetbus.dev/queue-weight=5,region=eu"]
    assert ended.rows[1][-1] == "<none>"
    assert [item["name"] for item in answer["items"]] == ["c1", "c2", "c3"]
    # The fleet was set up a while ago, however long that took: at least what the record says.
    last_answers = [datetime.fromisoformat(item["lastAnswer"]) for item in answer["items"]]
    for row, last_answer, at_least in zip(ended.rows[1:], last_answers, (1, 1, 200), strict=True):
        at_most = int((asked_at - last_answer).total_seconds())
        assert row[6] in {render_duration(age) for age in range(at_least, at_most + 1)}
    assert answer["items"][2]["lastAnswer"] < answer["items"][0]["lastAnswer"]


async def test_clusters_shows_what_a_watcher_had_to_leave_out(fleet: QueryApi, run: Run):
    cut = "its watcher shortened 9 texts of this heartbeat"
    await fleet.add_cluster("c4", state=ResourceState.STALE, message=cut)

    (line_of_c4,) = [line for line in (await run("clusters")).out.splitlines() if "c4" in line]

    assert "not complete: " in line_of_c4
    assert f"; {cut} " in line_of_c4


async def test_the_command_line_ends_with_the_status(api: QueryApi, tmp_path: Path):
    await api.add_cluster("c1")
    env = {**os.environ, "FLEETBUS_API_URL": api.url, "HOME": str(tmp_path)}

    def start(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [FLEETBUS, *argv], env=env, capture_output=True, text=True, check=False
        )

    absent = await asyncio.to_thread(start, "get", "pods", "nope")
    assert (absent.returncode, absent.stderr) == (1, "fleetbus: no pods 'nope'\n")
    unknown = await asyncio.to_thread(start, "get", "pods", "-o", "xml")
    assert unknown.returncode == 2
    assert len(unknown.stderr.splitlines()) == 1


async def test_every_built_in_type_has_rows_names_and_wide_rows(api: QueryApi, run: Run):
    await api.add_cluster("c1", *BUILTIN)
    for key in BUILTIN:
        await api.add("c1", key, "x")
    keys = [key.split("/") for key in BUILTIN]
    types = [plural if group == "core" else f"{plural}.{group}" for group, plural in keys]

    for output in ("table", "wide", "name"):
        ended = await run("get", ",".join(types), "-o", output)
        assert (ended.status, ended.err) == (0, "")
        lines = [line for line in ended.out.splitlines() if line.startswith("c1")]
        assert len(lines) == len(types)
    assert all(line.endswith("/x") for line in lines)


async def test_events_have_the_columns_of_kubectl(api: QueryApi, run: Run):
    await api.add_cluster("c1", "core/events")
    about = {"kind": "Pod", "namespace": "prod", "name": "web"}
    event: dict[str, Any] = {
        "type": "Warning",
        "reason": "BackOff",
        "message": "no",
        "involvedObject": about,
    }
    await api.add("c1", "core/events", "web.1", **event)

    rows = (await run("get", "events")).rows
    wide = (await run("get", "events", "-o", "wide")).rows
    names = (await run("get", "events", "-o", "name")).out

    assert " ".join(rows[0]) == "CLUSTER NAMESPACE LAST SEEN TYPE REASON OBJECT MESSAGE"
    assert rows[1][-4:] == ["Warning", "BackOff", "pod/web", "no"]
    assert wide[0][-1] == "NAME"
    assert wide[1][-1] == "web.1"
    assert names == "c1/events/prod/web.1\n"
