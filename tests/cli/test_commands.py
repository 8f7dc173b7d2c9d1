"""`fleetbus run` and `fleetbus events` as a person calls them.

Half a second of each process goes into its imports: what needs only status and text is asked
in this process, and one process of each kind shows that it is the same there.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib.metadata import version

import pytest

from fleetbus.errors import ConfigError
from fleetbus_cli.app import app
from fleetbus_cli.main import main
from fleetbus_cli.run.run import run_settings
from fleetbus_cli.target import Target
from support.eventually import eventually
from support.objects import pod
from support.processes.in_process_commands import status_of
from support.processes.programs import module as program
from support.rigs.fleet import Rig
from support.rows import each_row

Ended = tuple[int, str, str]
"""Exit status, standard output and error."""
Call = Callable[..., Ended]
OpenRig = Callable[..., Awaitable[Rig]]
FLEETBUS = str(pathlib.Path(sys.executable).with_name("fleetbus"))
WITHIN = timedelta(seconds=20)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process."""

    def call_one(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["fleetbus", *arguments])
        monkeypatch.setattr(app, "registered_groups", [])  # `main` registers those of devfleet
        status = status_of(main)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call_one


async def spawn(*arguments: str, **env: str) -> Ended:
    """The command in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        FLEETBUS,
        *arguments,
        env=os.environ | env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode or 0, out.decode(), err.decode()


def one_line(text: str) -> str:
    assert "Traceback" not in text
    assert text.count("\n") == 1, text
    return text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
        ("x = 1", "defines no fleetbus.Controller"),
        ("import fleetbus\nc = fleetbus.Controller('c')", "has no @reconcile function"),
        ("import fleetbus\nc = fleetbus.Controller('Not A Name')", "is not a DNS-1123 label"),
        (
            "import fleetbus\nc = fleetbus.Controller('c')\nc.watch('pods')",
            "needs group and version",
        ),
        (
            "import fleetbus\nc = fleetbus.Controller('c')\nc.watch('v1/Pod')",
            "like v1/pods or apps/v1/deployments; did you mean 'v1/pods'?",
        ),
        (
            "import fleetbus\nc = fleetbus.Controller('c')\nc.watch('apps/v1/deployment')",
            "'apps/v1/deployment' is not a plural; did you mean 'apps/v1/deployments'?",
        ),
    ],
)
def test_a_module_that_cannot_run_ends_with_one_message_and_status_2(
    call: Call, tmp_path: pathlib.Path, body: str, message: str
) -> None:
    module = tmp_path / "mine.py"
    module.write_text(body)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("clusters: []\ncontexts: [{name: a, context: {cluster: a}}]\n")
    status, _, err = call(
        "run",
        "--no-reload",
        str(module),
        "--kubeconfig",
        str(kubeconfig),
        "--nats-url=nats://127.0.0.1:1",
        "--redis-url=redis://127.0.0.1:1",
    )
    assert status == 2
    assert message in one_line(err)


def test_run_without_a_kubeconfig_file_says_which_is_missing(
    call: Call, tmp_path: pathlib.Path
) -> None:
    missing = tmp_path / "none"
    status, _, err = call(
        "run",
        "--no-reload",
        "x.py",
        "--kubeconfig",
        str(missing),
        "--nats-url=nats://127.0.0.1:1",
        "--redis-url=redis://127.0.0.1:1",
    )
    assert status == 2
    assert f"{missing}: no such file" in one_line(err)


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("clusters: [\n", (), "invalid YAML"),
        ("clusters: []\n", (), "has no contexts"),
        ("clusters: []\ncontexts: [{name: a}]\n", ("--contexts=b",), "known: a"),
    ],
)
def test_run_refuses_a_kubeconfig_that_gives_it_no_cluster(
    call: Call, tmp_path: pathlib.Path, text: str, more: tuple[str, ...], message: str
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(text)
    addresses = ("--nats-url=nats://127.0.0.1:1", "--redis-url=redis://127.0.0.1:1")
    arguments = ("--kubeconfig", str(kubeconfig), *more, *addresses)
    status, _, err = call("run", "--no-reload", "x.py", *arguments)
    assert status == 2
    assert message in one_line(err)


def test_run_takes_the_log_level_of_the_services_and_its_option_wins(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETBUS_LOG_LEVEL", "loud")
    status, _, err = call("run", "--no-reload", "x.py")
    assert (status, "log level 'loud' is not one of" in err) == (2, True)
    status, _, err = call("run", "--no-reload", "x.py", "--log-level=quiet")
    assert (status, "log level 'quiet' is not one of" in err) == (2, True)


def test_run_with_contexts_looks_into_the_kubeconfig_of_the_fleet_that_runs_here(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEETBUS_PROVIDERS", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "of another fleet"))
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("clusters: []\ncontexts: [{name: a}, {name: b}]\n")
    here = Target(kubeconfig=str(kubeconfig), hub="a")
    (chosen,) = run_settings(here, [], ["b"], needs_bus=False).providers
    assert chosen.type == "kubeconfig"
    assert chosen.options == {"contexts": ["b"], "paths": [str(kubeconfig)]}
    with pytest.raises(ConfigError, match="no kubeconfig has the context 'c'"):
        run_settings(here, [], ["c"], needs_bus=False)
    monkeypatch.setenv("FLEETBUS_PROVIDERS", "[]")
    with pytest.raises(ConfigError, match="--contexts needs --kubeconfig"):
        run_settings(here, [], ["b"], needs_bus=False)


def test_the_version_is_printed(call: Call) -> None:
    assert call("--version") == (0, f"fleetbus {version('fleetbus')} (from a clone)\n", "")


@pytest.mark.slow
async def test_run_hosts_a_controller_until_it_is_reported_to_stop(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("a")
    rig.clusters["a"].create("v1/pods", pod("p1"), "default")
    rig.start_reconciler()
    rig.start_watcher("a")
    module = tmp_path / "mine.py"
    module.write_text(
        "import fleetbus\n"
        "c = fleetbus.Controller('c')\n"
        "c.watch('v1/pods')\n"
        "@c.reconcile\n"
        "async def f(request, fleet):\n"
        "    print('saw', request, flush=True)\n"
    )
    process = await asyncio.create_subprocess_exec(
        FLEETBUS,
        "run",
        str(module),
        "--kubeconfig",
        str(rig.kubeconfig),
        f"--nats-url={rig.shared.nats_url}",
        f"--redis-url={rig.shared.redis_url}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WITHIN.total_seconds()):
            line = await process.stdout.readline()
        assert line == b"saw cluster://a/default/p1\n"
    finally:
        process.terminate()
        status = await asyncio.wait_for(process.wait(), 20)
    assert status == 0


async def test_events_shows_the_past_with_filters_and_ends(open_rig: OpenRig) -> None:
    rig = await open_rig("a", "b")
    for cluster in ("a", "b"):
        rig.clusters[cluster].create("v1/pods", pod("p1"), "default")
    rig.start_reconciler()
    rig.start_watcher("a")
    rig.start_watcher("b")
    await rig.synced("core/pods")
    url = f"--nats-url={rig.shared.nats_url}"
    one_cluster, one_verb, as_json = await asyncio.gather(
        spawn("events", "po", "--cluster", "b", "--since", "5m", url),
        spawn("events", "--verb", "deleted", "--since", "5m", url),
        spawn("events", "pods", "-o", "json", "--since", "5m", url),
    )
    status, out, _ = one_cluster
    assert status == 0
    head, *rows = out.splitlines()
    assert head.split() == [
        "TIME",
        "CLUSTER",
        "VERB",
        "RESOURCE",
        "NAMESPACE",
        "NAME",
        "RESOURCEVERSION",
    ]
    assert [row.split()[1:6] for row in rows] == [["b", "listed", "pods", "default", "p1"]]
    status, out, err = one_verb
    assert (status, len(out.splitlines()), err) == (0, 1, "No events found.\n")
    status, out, _ = as_json
    assert status == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert {event["cluster"] for event in events} == {"a", "b"}
    assert all(event["object"]["metadata"]["name"] == "p1" for event in events)


async def test_events_follow_shows_a_change_as_it_happens(open_rig: OpenRig) -> None:
    rig = await open_rig("a")
    rig.start_reconciler()
    rig.start_watcher("a")
    await rig.synced("core/pods")
    process = await asyncio.create_subprocess_exec(
        FLEETBUS,
        "events",
        "--follow",
        f"--nats-url={rig.shared.nats_url}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    lines: list[bytes] = []

    async def read() -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            lines.append(line)

    reading = asyncio.create_task(read())
    try:
        await eventually(lambda: bool(lines), WITHIN)  # the head: it listens
        rig.clusters["a"].create("v1/pods", pod("p1"), "default")
        await eventually(lambda: any(b" added " in line for line in lines), WITHIN)
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 10)
        await reading
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--since", "soon"), "--since 'soon' is not a duration"),
        (("--verb", "changed"), "--verb 'changed' is not one of"),
        (("No Such/Resource",), "is not a resource name"),
        (("--cluster", "EU_1"), "'EU_1' is not a DNS-1123 label"),
        (("-o", "xml"), "--output 'xml' is not one of"),
    ],
)
def test_events_refuses_what_it_cannot_read(
    call: Call, arguments: tuple[str, ...], message: str
) -> None:
    status, _, err = call("events", *arguments, "--nats-url=nats://127.0.0.1:1")
    assert status == 2
    assert message in one_line(err)


@pytest.mark.parametrize("words", [(), ("dev",), ("dev", "fault"), ("rollout",)])
def test_help_shows_whole_sentences(call: Call, words: tuple[str, ...]) -> None:
    listed = call(*words, "--help")[1].partition("Commands:\n")[2]
    cut = [line for line in listed.splitlines() if not line.endswith(".") or line.endswith("...")]
    assert listed
    assert cut == []


def test_a_name_behind_a_slash_and_one_of_its_own_cannot_be_mixed(call: Call) -> None:
    status, _, err = call("get", "deployments/web", "db", "--api-url=http://127.0.0.1:1")
    assert status == 2
    assert "TYPE/NAME and TYPE NAME cannot be mixed" in one_line(err)


@pytest.mark.parametrize("arguments", [("get",), ("get", "pods", "--limit", "-1"), ("nothing",)])
def test_wrong_usage_is_reported_with_status_2(call: Call, arguments: tuple[str, ...]) -> None:
    status, _, err = call(*arguments)
    assert status == 2
    assert "Usage:" in err
    assert "Traceback" not in err


def test_events_from_a_dead_address_says_so(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus_cli.nats.PATIENCE", timedelta(seconds=0.2))
    status, _, err = call("events", "--since", "1m", "--nats-url=nats://127.0.0.1:1")
    assert status == 1
    assert "NATS at nats://127.0.0.1:1 does not answer" in err
    assert "Traceback" not in err


async def test_a_command_of_its_own_process_ends_alike() -> None:
    refused, unknown = await asyncio.gather(spawn("events", "--since", "soon"), spawn("nothing"))
    assert refused[:2] == (2, "")
    assert "--since 'soon' is not a duration" in one_line(refused[2])
    assert unknown[0] == 2
    assert "Usage:" in unknown[2]


@each_row("module", ["typer", "fleetbus_devfleet.commands", "asyncio"])
def test_ctrl_c_while_the_commands_are_loaded_ends_silently_with_130(module: str) -> None:
    command = program("scripts.interrupted_import", module)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
