"""`fleetbus get` has the habits of kubectl: arguments, forms, short names, terminals, pipes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.errors import ConfigError
from fleetbus.kube.jsonpath import InvalidJsonPath
from fleetbus.snapshot import Definition, ResourceRecord, ResourceState
from fleetbus_cli.objects import table_output
from fleetbus_cli.objects.arguments import Chosen, parse_objects
from fleetbus_cli.unknown import UnknownName
from fleetbus_proto.events import PrinterColumn
from support.processes.in_process_commands import fleetbus
from support.rigs.query_api import Ended
from support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.rigs.query_api import QueryApi

    Run = Callable[..., Awaitable[Ended]]

FLEETBUS = Path(sys.executable).parent / "fleetbus"


def pod(phase: str = "Running") -> dict[str, Any]:
    containers = [{"name": "web", "image": "nginx:1"}]
    return {"kind": "Pod", "spec": {"containers": containers}, "status": {"phase": phase}}


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    await api.add_cluster("c1")
    await api.add_cluster("c2", "core/pods")
    await api.add("c1", "core/pods", "web", labels={"app": "web"}, **pod())
    await api.add("c1", "core/pods", "db", namespace="test", **pod("Pending"))
    await api.add("c2", "core/pods", "web", labels={"app": "web"}, **pod())
    await api.add("c1", "apps/deployments", "web", spec={"replicas": 2})
    columns = [PrinterColumn(name="Size", type="integer", json_path=".spec.size")]
    names = Definition(singular="widget", short_names=["wd"], categories=["ours"], columns=columns)
    widgets = ResourceRecord(
        group="example.com",
        version="v1",
        plural="widgets",
        kind="Widget",
        state=ResourceState.SYNCED,
        definition=names,
    )
    await api.snapshot.writer.put_resource_state("c1", widgets)
    await api.add("c1", "example.com/widgets", "w1", spec={"size": 3})
    return api


@pytest.fixture
def environment(api: QueryApi, tmp_path: Path) -> dict[str, str]:
    return {"FLEETBUS_API_URL": api.url, "HOME": str(tmp_path), "PATH": os.environ["PATH"]}


@pytest.fixture
def run(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    async def run_command(*argv: str) -> Ended:
        capsys.readouterr()
        status = await asyncio.to_thread(fleetbus, *argv)
        return Ended.read(status, capsys)

    return run_command


ARGUMENTS: list[tuple[list[str], list[tuple[str, list[str]]]]] = [
    (["pods"], [("pods", [])]),
    (["pods", "a", "b"], [("pods", ["a", "b"])]),
    (["pods,svc"], [("pods", []), ("svc", [])]),
    (["pod/a"], [("pod", ["a"])]),
    (["pod/a", "svc/b", "pod/c"], [("pod", ["a", "c"]), ("svc", ["b"])]),
    (["deployments.apps/web"], [("deployments.apps", ["web"])]),
    (["v1/pods"], [("v1/pods", [])]),
    (["v1/pods/a"], [("v1/pods", ["a"])]),
    (["apps/v1/deployments"], [("apps/v1/deployments", [])]),
    (["apps/v1/deployments/a"], [("apps/v1/deployments", ["a"])]),
    (["networking.k8s.io/v1/ingresses", "a"], [("networking.k8s.io/v1/ingresses", ["a"])]),
]


@each_row(("arguments", "chosen"), ARGUMENTS)
def test_arguments_are_those_of_kubectl(arguments: list[str], chosen: list[tuple[str, list[str]]]):
    assert parse_objects(arguments) == [Chosen(*choice) for choice in chosen]


@each_row(
    "arguments",
    [["pod/a", "b"], ["pod/"], ["/a"], ["pod/a/b"], ["a//b"], [","], ["pods,"], ["pods,,svc"]],
)
def test_malformed_arguments_are_refused(arguments: list[str]):
    with pytest.raises(ConfigError):
        parse_objects(arguments)


@pytest.mark.usefixtures("fleet")
async def test_several_types_and_names_are_shown_as_kubectl_does(run: Run):
    both = await run("get", "pods,deploy", "-n", "prod")
    named = await run("get", "pods", "web", "db")
    slashed = await run("get", "pod/db", "deploy/web")

    assert [row[:3] for row in both.rows] == [
        ["CLUSTER", "NAMESPACE", "NAME"],
        ["c1", "prod", "pod/web"],
        ["c2", "prod", "pod/web"],
        [],
        ["CLUSTER", "NAMESPACE", "NAME"],
        ["c1", "prod", "deployment.apps/web"],
    ]
    assert [row[2] for row in named.rows if row and row[2] != "NAME"] == ["web", "web", "db"]
    assert [row[2] for row in slashed.rows if row and row[2] != "NAME"] == [
        "pod/db", "deployment.apps/web",
    ]  # fmt: skip


@pytest.mark.usefixtures("fleet")
async def test_a_category_shows_all_that_is_in_it(run: Run):
    everything = await run("get", "all")
    ended = await run("get", "ours")

    names = [row[2] for row in everything.rows if row and row[2] != "NAME"]
    assert names == ["pod/web", "pod/db", "pod/web", "deployment.apps/web"]
    assert [row[2] for row in ended.rows] == ["NAME", "w1"]


@pytest.mark.usefixtures("fleet")
async def test_custom_resources_have_short_names_and_columns(run: Run):
    ended = await run("get", "wd")

    assert ended.rows == [["CLUSTER", "NAMESPACE", "NAME", "SIZE"], ["c1", "prod", "w1", "3"]]
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.usefixtures("fleet")
async def test_the_options_of_kubectl(run: Run):
    labels = await run("get", "po", "--show-labels", "--cluster", "c1", "-n", "prod")
    bare = await run("get", "po", "--no-headers")
    selected = await run("get", "po", "--field-selector", "status.phase=Pending")
    by_phase = await run("get", "po", "--sort-by", "{.status.phase}", "-o", "name")

    assert (labels.rows[0][-1], labels.rows[1][-1]) == ("LABELS", "app=web")
    assert [row[2] for row in bare.rows] == ["web", "db", "web"]
    assert [row[2] for row in selected.rows] == ["NAME", "db"]
    assert by_phase.out.split() == ["c1/pods/test/db", "c1/pods/prod/web", "c2/pods/prod/web"]


@pytest.mark.usefixtures("fleet")
async def test_templates_print_what_they_say(run: Run):
    ended = await run("get", "pod/db", "-o", "jsonpath={.metadata.name} {.status.phase}")
    many = await run("get", "pods", "-o", "jsonpath={range .items[*]}{.metadata.name},{end}")
    where = await run(
        "get", "pods", "-o", r"jsonpath={.items[*].metadata.annotations.fleetbus\.dev/cluster}"
    )
    columns = "NAME:.metadata.name,IMAGES:.spec.containers[*].image,NODE:.spec.nodeName"
    custom = await run("get", "po", "-o", f"custom-columns={columns}")

    assert ended.out == "db Pending"
    assert many.out == "web,db,web,"
    assert where.out == "c1 c1 c2"
    assert custom.rows[:2] == [["NAME", "IMAGES", "NODE"], ["web", "nginx:1", "<none>"]]
    with pytest.raises(InvalidJsonPath):
        await run("get", "pods", "-o", "jsonpath={.a[}")
    with pytest.raises(ConfigError, match="NAME:PATH"):
        await run("get", "pods", "-o", "custom-columns=NAME")
    with pytest.raises(ConfigError, match="jsonpath"):
        await run("get", "pods", "-o", "jsonpath")


@pytest.mark.usefixtures("fleet")
async def test_clusters_that_do_not_serve_a_type_are_no_warning_unless_named(run: Run):
    everywhere = await run("get", "deploy")
    named = await run("get", "deploy", "--cluster", "c2")

    assert everywhere.err == ""
    assert "note: not served, or not watched, in c2" in named.err


async def test_it_is_said_that_secrets_are_not_watched(fleet: QueryApi, run: Run):
    await fleet.add_cluster("c3", "core/services")
    ended = await run("get", "secrets")
    other = await run("get", "pots")

    assert ended.status == 1
    assert "FLEETBUS_WATCHER_SECRETS=true" in ended.err
    assert "did you mean" not in ended.err, "it is known what is meant"
    assert "SECRETS" not in other.err


@each_row("word", ["events", "ev", "events.events.k8s.io", "v1/events"])
async def test_it_is_said_how_events_are_watched(fleet: QueryApi, run: Run, word: str):
    await fleet.add_cluster("c3", "core/services")
    ended = await run("get", word)
    assert ended.status == 1
    assert '"fieldSelector": "type=Warning"' in ended.err
    assert "did you mean" not in ended.err


@pytest.mark.usefixtures("fleet")
async def test_api_resources_lists_the_types(run: Run):
    ended = await run("api-resources")
    names = await run("api-resources", "-o", "name")
    wide = await run("api-resources", "-o", "wide", "--no-headers")

    assert ["widgets", "wd", "example.com/v1", "true", "Widget"] in ended.rows
    assert "widgets.example.com" in names.out.splitlines()
    assert ["pods", "po", "v1", "true", "Pod", "all"] in wide.rows
    assert (await run("api-resources", "--not-namespaced")).out == ""


@pytest.mark.usefixtures("fleet")
async def test_one_cluster_is_shown_in_detail(run: Run):
    ended = await run("clusters", "c2")
    as_json = json.loads((await run("clusters", "show", "c2", "-o", "json")).out)
    with pytest.raises(UnknownName, match="'c9' is not in the fleet; known: c1, c2"):
        await run("clusters", "c9")

    assert ["Connected:", "yes"] in ended.rows
    assert ["pods", "v1", "1", "synced", "-"] in ended.rows
    assert as_json["name"] == "c2"


def test_widths_are_those_of_the_first_page_and_cells_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str],
):
    rows = [["a", "b"], ["long", "x\ny"], ["longer", "\x1b[31m"]]

    assert table_output.TablePrinter(["One", "Two"], first_page=2).print(rows) == 3

    assert capsys.readouterr().out.splitlines() == [
        "ONE    TWO",
        "a      b",
        "long   x...",
        "longer   ?[31m",
    ]


@pytest.mark.usefixtures("fleet")
async def test_a_closed_pipe_ends_quietly(fleet: QueryApi, environment: dict[str, str]):
    for number in range(600):  # more than a pipe takes
        await fleet.add("c1", "core/configmaps", f"m{number:04}-{'x' * 200}")
    command = f"{FLEETBUS} get cm | head -n 1"

    ended = await asyncio.to_thread(
        subprocess.run, ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True
    )

    assert ended.stdout.split()[:2] == ["CLUSTER", "NAMESPACE"]
    assert ended.stderr == ""


async def on_terminal(environment: dict[str, str], *argv: str) -> str:
    def start() -> str:
        terminal, child_end = pty.openpty()
        with os.fdopen(terminal, "rb", buffering=0) as reader:
            child = subprocess.Popen([FLEETBUS, *argv], stdout=child_end, env=environment)
            os.close(child_end)
            output = b""
            try:
                while chunk := reader.read(4096):
                    output += chunk
            except OSError:  # the end of a terminal
                pass
            child.wait()
        return output.decode()

    return await asyncio.to_thread(start)


@pytest.mark.usefixtures("fleet")
async def test_there_are_colours_on_a_terminal_only_and_never_with_no_color(
    run: Run, environment: dict[str, str]
):
    output = await on_terminal({**environment, "TERM": "xterm"}, "get", "pods")
    plain = await on_terminal({**environment, "TERM": "xterm", "NO_COLOR": "1"}, "get", "pods")

    assert "\x1b[1mCLUSTER" in output
    assert "\x1b[33mc1" in output  # the pending one
    assert "\x1b" not in plain
    assert "\x1b" not in (await run("get", "pods")).out


COMPLETIONS = {
    "fleetbus get wid": "widgets",
    "fleetbus get po,wid": "po,widgets",
    "fleetbus get pods d": "db",
    "fleetbus get pod/d": "pod/db",
    "fleetbus get pods --cluster c": "c1 c2",
    "fleetbus clusters show c2": "c2",
    "fleetbus api-res": "api-resources",
}


@pytest.mark.slow
@pytest.mark.usefixtures("fleet")
async def test_bash_completes_types_names_and_clusters(
    run: Run, environment: dict[str, str], tmp_path: Path
):
    completion = tmp_path / "completion"
    completion.write_text((await run("completion", "bash")).out)

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        script = f"""
            source {completion}
            COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}
            _fleetbus {FLEETBUS}; echo "${{COMPREPLY[@]}}"
        """
        ended = subprocess.run(
            ["/bin/bash", "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        return ended.stdout.split()

    for line, expected in COMPLETIONS.items():
        offers = await asyncio.to_thread(complete, line)
        assert offers == expected.split(), line


@pytest.mark.usefixtures("fleet")
async def test_zsh_and_fish_are_answered_in_their_form(environment: dict[str, str]):
    def ask(**variables: str) -> str:
        ended = subprocess.run(
            [FLEETBUS], env={**environment, **variables}, capture_output=True, text=True, check=True
        )
        return ended.stdout

    words = {"_TYPER_COMPLETE_ARGS": "fleetbus get wid"}
    zsh = await asyncio.to_thread(ask, _FLEETBUS_COMPLETE="complete_zsh", **words)
    fish = await asyncio.to_thread(
        ask,
        _FLEETBUS_COMPLETE="complete_fish",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        **words,
    )

    assert "widgets" in zsh
    assert fish.split() == ["widgets"]


async def test_names_that_a_shell_would_evaluate_are_not_offered(
    fleet: QueryApi, environment: dict[str, str]
):
    """RBAC allows any name without `/` and `%`; zsh evaluates what it is given."""
    key = "rbac.authorization.k8s.io/clusterroles"
    await fleet.add_cluster("c1", key)
    for name in ("x:plain", r"x\$(id)", "x$(id)", "x`id`", "x;id", "x*", "x y", "x'y", "x\nid"):
        await fleet.add("c1", key, name, namespace="")
    for shell in ("bash", "zsh", "fish"):
        completion = {
            "_FLEETBUS_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": "fleetbus get clusterroles x",
            "COMP_CWORD": "3",
            "_TYPER_COMPLETE_ARGS": "fleetbus get clusterroles x",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        ended = await asyncio.to_thread(
            subprocess.run,
            [FLEETBUS],
            env={**environment, **completion},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "plain" in ended.stdout, shell
        assert ended.stdout.count("x") == 1, ended.stdout


async def test_completion_is_printed_for_three_shells_and_quiet_without_an_api(
    run: Run, tmp_path: Path
):
    for shell in ("bash", "zsh", "fish"):
        assert "_FLEETBUS_COMPLETE=complete_" in (await run("completion", shell)).out
    with pytest.raises(ConfigError, match="tcsh"):
        await run("completion", "tcsh")
    nobody = {
        "FLEETBUS_API_URL": "http://127.0.0.1:1",
        "HOME": str(tmp_path),
        "_FLEETBUS_COMPLETE": "complete_bash",
        "COMP_WORDS": "fleetbus get p",
        "COMP_CWORD": "2",
    }

    ended = await asyncio.to_thread(
        subprocess.run, [FLEETBUS], env=nobody, capture_output=True, text=True
    )

    assert (ended.stdout.strip(), ended.stderr) == ("", "")
