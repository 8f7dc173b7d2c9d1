"""A whole stack of processes: it starts, breaks, mends, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from typer.testing import CliRunner

from fleetbus.kube.connection.config import read_kube_config, server_of
from fleetbus_devfleet.__main__ import read_plan
from fleetbus_devfleet.commands import lifecycle
from fleetbus_devfleet.commands.app import dev
from fleetbus_devfleet.commands.report import hints
from fleetbus_devfleet.processes.children import Child, ChildError
from fleetbus_devfleet.stack.plan import (
    ClusterPlan,
    Layout,
    PlanError,
    StackPlan,
    apiserver_command,
    fleet_of,
    services,
)
from fleetbus_devfleet.stack.stack import NATS, VALKEY, Stack
from fleetbus_devfleet.stack.state import (
    PartState,
    StackState,
    is_owned,
    owned,
    read_state,
    write_state,
)
from fleetbus_devfleet.stack.supervisor import restart_each
from fleetbus_emulator.__main__ import read_options
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.apiserver.admin import serve_admin
from support.eventually import eventually
from support.full import FULL
from support.processes.running import is_alive, running_children

if TYPE_CHECKING:
    from collections.abc import Generator

    from typer.testing import Result


_SHELL = "/bin/sh"
_FLEETBUS = Path(sysconfig.get_path("scripts"), "fleetbus")
_DEFINITION = Path(__file__).parents[2] / "examples" / "podghost" / "crd.yaml"
_SHOWN = "fleetbus get deployments -o wide"
_GHOSTS = "examples.fleetbus.dev/v1alpha1/podghosts"


def _plan(folder: Path, *, clusters: int = 1, modules: tuple[Path, ...] = ()) -> StackPlan:
    return StackPlan(layout=Layout(root=folder), clusters=fleet_of(clusters), modules=modules)


def test_the_clusters_of_a_fleet_have_regions_and_the_first_is_the_hub():
    fleet = fleet_of(5)
    assert [cluster.name for cluster in fleet] == ["hub", "eu1", "us1", "ap1", "eu2"]
    assert [cluster.labels["region"] for cluster in fleet] == ["eu", "eu", "us", "ap", "eu"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["hub", "eu1", "eu1"], "'eu1' is listed twice"),
        (["hub", "Europe"], "'Europe' is not a DNS label"),
        ([], "at least one cluster"),
    ],
)
def test_an_impossible_fleet_is_refused_by_name(tmp_path: Path, names: list[str], message: str):
    with pytest.raises(PlanError, match=message):
        StackPlan(
            layout=Layout(root=tmp_path),
            clusters=tuple(ClusterPlan(name=name) for name in names),
        )


def test_a_module_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path):
    with pytest.raises(PlanError, match=r"nowhere\.py: there is no such file"):
        _plan(tmp_path, modules=(tmp_path / "nowhere.py",))


def test_a_state_file_without_an_owner_is_stale(tmp_path: Path):
    layout = Layout(root=tmp_path)
    write_state(layout.state, StackState(phase="running", pid=1))
    assert read_state(layout.state) is not None
    assert lifecycle.running_state(layout) is None

    with owned(layout) as is_owner:
        assert is_owner
        assert is_owned(layout)
        assert lifecycle.running_state(layout) is not None
        with owned(layout) as second:
            assert not second
    assert not is_owned(layout)


def test_in_a_folder_below_the_fleet_of_a_folder_above_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    layout = Layout(root=tmp_path / ".fleetbus" / "dev")
    below = tmp_path / "mine" / "bad"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    with owned(layout):
        write_state(layout.state, StackState(phase="running", pid=os.getpid(), clusters=("hub",)))
        result = CliRunner().invoke(dev, ["status", "-o", "json"])
        named = CliRunner().invoke(dev, ["status", "-o", "json", "--dir", str(tmp_path)])
        assert not [hint for hint in hints_of(layout) if "dev env" in hint]
    assert json.loads(result.output)["clusters"] == ["hub"]
    assert json.loads(named.output)["phase"] == "stopped"
    alone = CliRunner().invoke(dev, ["down"])
    assert str(below / ".fleetbus" / "dev") in alone.output.replace("\n", "")


def hints_of(layout: Layout) -> list[str]:
    layout.kubeconfig.write_text("{clusters: [{name: hub, cluster: {server: 'http://h'}}]}")
    state = StackState(phase="running", pid=1, clusters=("hub",), kubeconfig=str(layout.kubeconfig))
    return [hint.command for hint in hints(state, layout)]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"phase": "running"}', '{"parts": 3}'])
def test_a_state_file_that_is_not_ours_is_no_state(tmp_path: Path, content: str):
    path = tmp_path / "stack.json"
    path.write_text(content)
    assert read_state(path) is None


def test_dev_commands_say_that_nothing_runs(tmp_path: Path):
    runner = CliRunner()
    assert runner.invoke(dev, ["down", "--dir", str(tmp_path)]).exit_code == 0
    result = runner.invoke(dev, ["status", "--dir", str(tmp_path), "-o", "json"])
    assert (result.exit_code, json.loads(result.output)["phase"]) == (1, "stopped")
    refused = runner.invoke(dev, ["up", "--clusters", "0", "--dir", str(tmp_path)])
    assert (refused.exit_code, "at least one cluster" in refused.output) == (2, True)


@pytest.mark.parametrize("text", ["soon", "0s", "-1s", "9" * 400, "inf"])
def test_a_progress_interval_that_is_no_time_is_refused(tmp_path: Path, text: str):
    refused = CliRunner().invoke(dev, ["up", "--progress-interval", text, "--dir", str(tmp_path)])
    assert (refused.exit_code, "no time" in refused.output) == (2, True), refused.output


@pytest.mark.parametrize("interval", [None, timedelta(minutes=10), timedelta(milliseconds=250)])
def test_the_emulated_stores_report_progress_as_the_plan_says(
    tmp_path: Path, interval: timedelta | None
):
    layout = Layout(root=tmp_path)
    plan = StackPlan(layout=layout, clusters=fleet_of(2), progress_interval=interval)
    python, _, module, *arguments = apiserver_command(plan)
    assert (python, module) == (sys.executable, "fleetbus_emulator")
    assert read_options(arguments).progress_interval == interval


def test_a_fleet_with_another_progress_interval_is_not_taken_for_the_wanted_one():
    minutes = timedelta(minutes=10)
    state = StackState(phase="running", pid=1, progress_seconds=600)
    assert lifecycle.difference(state, None, record=False, progress_interval=minutes) == ""
    assert lifecycle.difference(state, None, record=False) == ""
    other = lifecycle.difference(state, None, record=False, progress_interval=minutes * 2)
    assert other == "with another --progress-interval"


def test_secrets_are_watched_only_if_the_plan_says_so(tmp_path: Path):
    arguments = ["--clusters", "2", "--dir", str(tmp_path)]
    for options, expected in (([], "false"), (["--secrets"], "true")):
        plan = read_plan([*arguments, *options])
        parts = services(plan, nats_url="", redis_url="", api_port=1)
        watchers = [child for child in parts if child.name.startswith("watcher-")]
        assert [child.env["FLEETBUS_WATCHER_SECRETS"] for child in watchers] == [expected] * 2
    without = StackState(phase="running", pid=1)
    assert lifecycle.difference(without, None, record=False, secrets=True) == "without --secrets"
    assert lifecycle.difference(without, None, record=False) == ""


def test_dev_env_prints_what_a_shell_needs_to_use_the_fleet(tmp_path: Path):
    runner = CliRunner()
    refused = runner.invoke(dev, ["env", "--dir", str(tmp_path)])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "no fleet runs in" in refused.stderr
    layout = Layout(root=tmp_path / "a fleet")
    state = StackState(
        phase="running",
        pid=os.getpid(),
        clusters=("hub", "eu1"),
        kubeconfig=str(layout.kubeconfig),
        nats_url="nats://127.0.0.1:1",
        redis_url="redis://127.0.0.1:2/0",
        api_url="http://127.0.0.1:3",
    )
    with owned(layout):
        write_state(layout.state, state)
        result = runner.invoke(dev, ["env", "--dir", str(layout.root)])
        settings = json.loads(
            runner.invoke(dev, ["env", "--dir", str(layout.root), "-o", "json"]).output
        )
    script = f"{result.stdout}\nprintenv FLEETBUS_HUB_CLUSTER FLEETBUS_PROVIDERS KUBECONFIG"
    result = _output(script).splitlines()
    assert result == ["hub", '[{"type": "cluster"}]', str(layout.kubeconfig)]
    assert settings["FLEETBUS_REDIS_URL"] == state.redis_url
    assert settings["FLEETBUS_API_URL"] == state.api_url


async def test_a_part_that_cannot_be_restarted_does_not_keep_others_from_it():
    restarted: list[str] = []

    async def restart(name: str) -> None:
        restarted.append(name)
        if name == "broken":
            raise ChildError("it ends at once")

    assert not await restart_each(["broken", "sound"], restart)
    assert restarted == ["broken", "sound"]
    assert await restart_each(["sound"], restart)


async def test_dev_status_says_that_the_ground_truth_is_not_recorded_any_more(tmp_path: Path):
    layout = Layout(root=tmp_path)
    cluster = Cluster("hub")
    cluster.truth.record_problem = "truth/hub.jsonl ends before number 7: no space left"
    async with serve([cluster]) as servers, serve_admin(servers) as url:
        apiserver = PartState(
            name="apiserver", pid=os.getpid(), log="", ready_url=url.replace("http", "tcp")
        )
        running = StackState(
            phase="running", pid=os.getpid(), parts=(apiserver,), admin_url=url, record=True
        )
        with owned(layout):
            write_state(layout.state, running)
            arguments = ["status", "--dir", str(layout.root), "-o", "json"]
            result = await asyncio.to_thread(CliRunner().invoke, dev, arguments)
            cluster.truth.record_problem = ""
            healed = await asyncio.to_thread(CliRunner().invoke, dev, arguments)
    (status,) = json.loads(result.output)["parts"]
    assert (result.exit_code, status["state"]) == (1, "not ready")
    assert status["problem"] == "truth/hub.jsonl ends before number 7: no space left"
    assert healed.exit_code == 0


@pytest.mark.full
async def test_a_stack_starts_breaks_mends_and_leaves_no_process(tmp_path: Path):
    before = set(running_children())
    reports: list[tuple[str, bool]] = []
    plan = _plan(tmp_path, clusters=2)
    async with Stack(plan, report=lambda name, ready: reports.append((name, ready))) as stack:
        assert {child.state for child in await stack.status()} == {"ready"}
        names = {child.name for child in await stack.status()}
        assert {NATS, VALKEY, "apiserver", "watcher-hub", "watcher-eu1"} < names

        stack.kill("watcher-eu1")
        assert stack.ended() == ["watcher-eu1"]
        assert [child.name for child in await stack.status() if child.state == "ended"] == [
            "watcher-eu1"
        ]
        urls = (stack.nats_url, stack.redis_url)
        for name in ("watcher-eu1", NATS, VALKEY):
            reports.clear()
            await stack.restart(name)
            assert reports == [(name, False), (name, True)]

        assert (stack.nats_url, stack.redis_url) == urls
        await eventually(lambda: _all_ready(stack), within=timedelta(seconds=20))
        with pytest.raises(ChildError, match="in memory"):
            await stack.restart("apiserver")
        pids = [child.pid for child in stack.state().parts]
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))
    assert set(running_children()) == before


@pytest.mark.full  # test_servers has it of one child
async def test_a_part_that_ends_early_is_reported_with_its_last_words(tmp_path: Path):
    module = tmp_path / "broken.py"
    module.write_text("raise RuntimeError('this module is broken on purpose')\n")
    before = set(running_children())
    with pytest.raises(ChildError, match=r"reconciler ended with(.|\n)*broken"):
        async with Stack(_plan(tmp_path / "stack", modules=(module,))):
            pass
    assert set(running_children()) == before


async def _all_ready(stack: Stack) -> bool:
    return all(child.state == "ready" for child in await stack.status())


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Layout]:
    """A folder for `fleetbus dev`; what still runs in it at the end is killed."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    layout = Layout(root=tmp_path)
    yield layout
    left = lifecycle.running_state(layout)
    if left is not None:
        os.kill(left.pid, signal.SIGKILL)


def _dev(layout: Layout, *arguments: str) -> Result:
    return CliRunner().invoke(dev, [*arguments, "--dir", str(layout.root)])


def test_dev_up_on_a_running_fleet_names_the_parts_that_are_not_ready(tmp_path: Path):
    layout = Layout(root=tmp_path)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    state = StackState(
        phase="running",
        pid=os.getpid(),
        clusters=("hub",),
        kubeconfig=str(layout.kubeconfig),
        parts=(PartState(name=NATS, pid=child.pid, log="nats.log"),),
    )
    context = {"name": "hub", "context": {"cluster": "hub"}}
    cluster = {"name": "hub", "cluster": {"server": "http://127.0.0.1:1"}}
    layout.kubeconfig.write_text(json.dumps({"contexts": [context], "clusters": [cluster]}))
    with owned(layout):
        write_state(layout.state, state)
        result = _dev(layout, "up")
    assert result.exit_code == 0, result.output
    assert "nats is not ready: its process has ended; see nats.log" in result.output


@pytest.mark.slow
def test_dev_up_that_is_interrupted_says_so_and_leaves_no_process(layout: Layout):
    command = [str(_FLEETBUS), "dev", "up", "--clusters", "1", "--dir", str(layout.root)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as interrupted:
        assert interrupted.stdout is not None
        assert "ready: nats" in interrupted.stdout.readline()
        interrupted.send_signal(signal.SIGINT)
        _, output = interrupted.communicate(timeout=30)
    assert (interrupted.returncode, output) == (
        130,
        "fleetbus dev: interrupted; every process is stopped\n",
    )
    assert not is_owned(layout)


@pytest.mark.slow
@pytest.mark.timeout(180)  # it starts processes, and starts them again, beside other tests
async def test_dev_up_leaves_a_fleet_that_mends_and_whose_hints_work_until_down(layout: Layout):
    command = [str(_FLEETBUS), "dev", "up", "--clusters", "2", "--dir", str(layout.root)]
    # Two at the same time: one starts the fleet, and the other waits for it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        first = await asyncio.to_thread(_dev, layout, "up", "--clusters", "2")
        assert first.exit_code == 0, first.output
        assert "The fleet runs" in (await asyncio.to_thread(other.communicate))[0]
    state = lifecycle.running_state(layout)
    assert state is not None
    file = layout.root / "home" / ".multi-cluster-operator" / "config"
    assert f"serverPort: {state.api_url.rpartition(':')[2]}\n" in file.read_text()
    file.write_text("server: 8888\n")
    again = await asyncio.to_thread(_dev, layout, "up")
    assert "already runs" in again.output
    assert file.read_text() == "server: 8888\n", "an existing file is never overwritten"
    ending = ("distributor", "query-api", NATS, VALKEY)
    killed = {child.pid for child in state.parts if child.name in ending}
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    mended = await eventually(lambda: _mended(layout, killed), within=timedelta(seconds=60))
    assert mended is not None
    assert mended.api_url == state.api_url, "kubeconfigs and open watches have its address"
    await _define_ghosts(mended)
    # By itself, and not as it was before: Valkey may have lost the last second.
    await eventually(lambda: _knows_all(mended, "v1/pods"), within=timedelta(seconds=30))
    await eventually(lambda: _knows_all(mended, _GHOSTS), within=timedelta(seconds=20))

    env = await asyncio.to_thread(_dev, layout, "env", "-o", "json")
    settings = json.loads(env.output)
    assert (settings["FLEETBUS_NATS_URL"], settings["FLEETBUS_API_URL"]) == (
        mended.nats_url,
        mended.api_url,
    )
    all_hints = hints(state, layout)
    assert [hint.command for hint in all_hints if hint.command not in first.output] == []
    outputs = await asyncio.to_thread(_try_all, [hint.command for hint in all_hints])

    assert "web" in outputs[_SHOWN]
    assert not any(is_alive(pid) for pid in {*_pids(state), *_pids(mended)})
    assert not layout.state.exists()


async def _knows_all(state: StackState, resource: str) -> bool:
    url = f"{state.api_url}/fleet/v1/resources/{resource}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status == 200 and not (await answer.json())["incomplete"]


async def _define_ghosts(state: StackState) -> None:
    """As the examples tell people to: a definition that no watcher can have known of."""
    async with aiohttp.ClientSession() as session:
        for cluster in state.clusters:
            server = server_of(read_kube_config(state.kubeconfig, cluster))
            url = f"{server}/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            kind = {"Content-Type": "application/yaml"}
            async with session.post(url, data=_DEFINITION.read_bytes(), headers=kind) as answer:
                assert answer.status == 201, await answer.text()


async def _mended(layout: Layout, killed: set[int]) -> StackState | None:
    result = await asyncio.to_thread(_dev, layout, "status", "-o", "json")
    states = {child["state"] for child in json.loads(result.output)["parts"]}
    state = lifecycle.running_state(layout)
    if state is None or killed & set(_pids(state)) or states != {"ready"}:
        return None
    assert result.exit_code == 0
    return state


def _try_all(commands: list[str]) -> dict[str, str]:
    """Run each as a person would, in one shell session; answers what it said.

    What neither makes nor ends anything goes side by side: most of it is Python importing. Of these
    `make test` takes a third.
    """
    exports = [command for command in commands if command.startswith(("export ", "eval "))]
    first, *others, last = commands[len(exports) :]

    def tried(command: str) -> tuple[str, str]:
        follows = command.startswith(("fleetbus events -f", "fleetbus run"))
        script = "; ".join([*exports, command])
        return command, _first_line(script) if follows else _output(script)

    outputs = [tried(first)]
    with ThreadPoolExecutor(3) as threads:
        outputs += threads.map(tried, others if FULL else [_SHOWN, *others[::3]])
    return dict([*outputs, tried(last)])


def _output(script: str) -> str:
    done = subprocess.run(
        [_SHELL, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def _first_line(script: str) -> str:
    shell = subprocess.Popen(
        [_SHELL, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with shell:
        assert shell.stdout is not None
        line = shell.stdout.readline()
        os.killpg(shell.pid, signal.SIGTERM)
    assert line, script
    return line


@pytest.mark.slow
async def test_a_killed_supervisor_takes_its_fleet_along_and_its_state_is_stale(layout: Layout):
    command = [sys.executable, "-m", "fleetbus_devfleet"]
    command += ["--clusters", "1", "--dir", str(layout.root)]
    supervisor = Child("supervisor", command, log=layout.root / "supervisor.log")
    state = await eventually(lambda: _with_services(layout), within=timedelta(seconds=30))
    assert state is not None

    supervisor.kill()

    await eventually(lambda: not any(is_alive(pid) for pid in _pids(state)))
    assert layout.state.exists()
    assert _dev(layout, "status").exit_code == 1


def _with_services(layout: Layout) -> StackState | None:
    state = read_state(layout.state)
    return state if state and any(child.name == "distributor" for child in state.parts) else None


def _pids(state: StackState) -> list[int]:
    return [state.pid, *(child.pid for child in state.parts)]
