"""`fleetbus plan` as a person calls it (rule D25)."""

from __future__ import annotations

import asyncio
import json
import pathlib
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import orjson
import pytest
import yaml
from nats.aio.client import Client

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_distribution
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus_cli.app import run_command_line
from fleetbus_distributor.kind import API_VERSION, KIND
from fleetbus_distributor.settings import DistributorSettings, share_settings
from fleetbus_proto import keys
from support.eventually import eventually
from support.rigs.agents import agent_rig
from support.rigs.distributor import CONFIG_MAP, HUB, Rig
from support.rigs.mixed_access import mixed

BOTH = {"clusters": [{"name": "t1"}, {"name": "t2"}]}


class Desk:
    """The command line, pointed at the rig's hub and clusters."""

    def __init__(self, rig: Rig, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self._file = folder / "fleet.yaml"
        self._file.write_bytes(orjson.dumps(rig.servers.kubeconfig()))
        self.environment = {
            "FLEETBUS_PROVIDERS": json.dumps([{"type": "kubeconfig", "paths": [str(self._file)]}]),
            "FLEETBUS_HUB_CLUSTER": HUB,
            "FLEETBUS_ALLOW_LOOPBACK": "true",
        }

    def write(self, **spec: Any) -> str:
        metadata = {"name": "x"}
        document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        path = self._folder / "x.yaml"
        path.write_text(yaml.safe_dump(document))
        return str(path)

    async def __call__(self, *words: str, redis_url: str = "") -> tuple[int, str, str]:
        hub = ("--hub-kubeconfig", str(self._file), "--hub-context", HUB)
        store = ("--redis-url", redis_url) if redis_url else ()
        self._capsys.readouterr()
        status = await asyncio.to_thread(self._run, [*words, *hub, *store])
        printed = self._capsys.readouterr()
        return status, printed.out, printed.err

    def _run(self, arguments: list[str]) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._folder)
            for name, value in self.environment.items():
                patch.setenv(name, value)
            patch.setattr("fleetbus_cli.app.entry_points", _only_plan)
            patch.setattr("sys.argv", ["fleetbus", "plan", *arguments])
            with pytest.raises(SystemExit) as ended:
                run_command_line()
        return int(ended.value.code or 0)


def _only_plan(*, group: str) -> EntryPoints:
    """The entry points of an installation with the distributor; that of the tests may be older."""
    return EntryPoints([EntryPoint("plan", "fleetbus_distributor.cli.commands:plan_app", group)])


@pytest.fixture
def desk(rig: Rig, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(rig, tmp_path, capsys)


async def test_d25_a_plan_from_a_file_then_nothing(rig: Rig, desk: Desk, valkey_url: str):
    status, out, err = await desk("-f", desk.write(template=CONFIG_MAP, placement=BOTH))
    assert (status, err) == (2, "")
    assert "MultiClusterResource default/x: 2 to create, 0 unchanged" in out
    assert "\nt1:\n  + create ConfigMap default/m\n" in out
    assert "\x1b" not in out, "colours are for terminals"
    assert not rig.exists()
    rig.create(template=CONFIG_MAP, placement=BOTH)
    await rig.reconcile()
    status, out, _ = await desk("x", redis_url=valkey_url)
    assert status == 0
    assert "nothing to do, 2 unchanged" in out


async def test_d25_json_has_the_diff(rig: Rig, desk: Desk):
    rig.create(template=CONFIG_MAP, placement=BOTH)
    await rig.reconcile()
    changed = {**CONFIG_MAP, "data": {"k": "new"}}
    status, out, _ = await desk("-f", desk.write(template=changed, placement=BOTH), "-o", "json")
    assert status == 2
    (plan,) = json.loads(out)["plans"]
    assert [cluster["name"] for cluster in plan["clusters"]] == ["t1", "t2"]
    (change,) = plan["clusters"][0]["objects"]
    assert (change["action"], change["kind"], change["checked"]) == ("change", "ConfigMap", True)
    assert "+  k: new" in change["diff"]


async def test_d25_a_cluster_behind_an_agent_is_planned_through_it(
    rig: Rig, desk: Desk, nats_url: str, tmp_path: pathlib.Path
):
    (provider,) = json.loads(desk.environment["FLEETBUS_PROVIDERS"])
    desk.environment["FLEETBUS_PROVIDERS"] = json.dumps([mixed(provider, ["t1"])])
    words = ("-f", desk.write(template=CONFIG_MAP, placement=BOTH))
    status, out, _ = await desk(*words)
    assert status == 1
    assert "cluster 't1': its agent is called over NATS: set --nats-url" in out
    async with agent_rig(nats_url, tmp_path) as agents:
        await agents.start(rig.servers.kubeconfig(), "t1", context="t1")
        status, out, _ = await desk(*words, "--nats-url", nats_url)
    assert status == 2
    assert "MultiClusterResource default/x: 2 to create, 0 unchanged" in out
    assert "\nt1:\n  + create ConfigMap default/m\n" in out


async def test_d25_a_plan_warns_of_what_the_status_would_warn_of(desk: Desk):
    entry = {"name": "t11", "action": [{"op": "remove", "path": "/data"}]}
    customize = {"clusters": [entry]}
    path = desk.write(template=CONFIG_MAP, placement=BOTH, customize=customize)
    _, out, _ = await desk("-f", path)
    assert "\n! warning: NoSuchCluster: spec.customize.clusters[0].name: no cluster" in out
    _, out, _ = await desk("-f", path, "-o", "json")
    (warning,) = json.loads(out)["plans"][0]["warnings"]
    assert warning.startswith("NoSuchCluster: ")


async def test_d25_a_cluster_that_cannot_be_asked_is_an_error(rig: Rig, desk: Desk):
    await rig.servers.stop("t1")
    status, out, _ = await desk("-f", desk.write(template=CONFIG_MAP, placement=BOTH))
    assert status == 1
    assert "MultiClusterResource default/x: 1 to create, 1 unreachable, 0 unchanged" in out
    assert "t1:\n  ! unreachable:" in out
    assert "t2:\n  + create ConfigMap default/m" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no MultiClusterResource in it"),
        ("a: {\nb: 1\n", "invalid YAML at line 2: did not find expected ',' or '}'"),
        ("- 1", "document 1: not an object"),
        ("kind: Pod\napiVersion: v1", "Pod of v1 is not a MultiClusterResource"),
        (f"kind: {KIND}\napiVersion: {API_VERSION}", "metadata.name is missing"),
        (f"kind: {KIND}\napiVersion: {API_VERSION}\nmetadata: {{name: 7}}", "is not a string"),
    ],
)
async def test_d25_bad_input_is_one_line(
    desk: Desk, tmp_path: pathlib.Path, text: str, message: str
):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    status, _, err = await desk("-f", str(path))
    assert status == 1
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("right", "wrong", "field"),
    [
        ("placement:", "placment:", "spec.placment"),
        ("template:", "tmplate:", "spec.tmplate"),
        ("spec:", "specs:", "specs"),
        ("labels:", "lables:", "metadata.lables"),
    ],
)
async def test_d25_a_field_that_is_none_is_named(
    rig: Rig, desk: Desk, right: str, wrong: str, field: str, is_new: bool
):
    """Left out silently, a misspelt placement would be a plan for the hub alone."""
    if not is_new:
        rig.create(template=CONFIG_MAP, placement=BOTH)
    path = pathlib.Path(desk.write(template=CONFIG_MAP, placement=BOTH))
    text = path.read_text().replace(
        "metadata:\n  name: x", "metadata:\n  name: x\n  labels: {a: b}"
    )
    assert right in text
    path.write_text(text.replace(right, wrong))
    status, out, err = await desk("-f", str(path))
    assert (status, out) == (1, "")
    assert f'unknown field "{field}"' in err


async def test_d25_keys_and_values_of_yaml_are_those_of_kubectl(
    rig: Rig, desk: Desk, tmp_path: pathlib.Path
):
    path = tmp_path / "odd.yaml"
    path.write_text(
        f"apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: x, namespace: default}}\n"
        "spec:\n  template:\n    apiVersion: v1\n    kind: ConfigMap\n"
        "    metadata: {name: m, namespace: default, annotations: {since: 2026-01-02}}\n"
        "    data: {yes: 'no', 1: '007', at: 12:30}\n"
        "  placement: {clusters: [{name: t1}]}\n"
    )
    rig.create(template=CONFIG_MAP, placement=BOTH)
    await rig.reconcile()
    status, out, err = await desk("-f", str(path), "-o", "json")
    assert (status, err) == (2, "")
    (change,) = json.loads(out)["plans"][0]["clusters"][0]["objects"]
    diff = "\n".join(change["diff"])
    for line in ("'1': '007'", "'true': 'no'", "at: '12:30'", "since: '2026-01-02'"):
        assert line in diff


async def test_d25_unknown_names_and_what_the_hub_refuses(desk: Desk):
    status, _, err = await desk("nobody")
    assert status == 1
    assert "there is no MultiClusterResource default/nobody" in err
    status, _, err = await desk("-f", desk.write(placement=BOTH))
    assert status == 1
    assert "the hub refused" in err
    status, _, err = await desk()
    assert status == 1
    assert "give the NAME" in err


async def test_d25_the_hub_of_the_chart_is_no_cluster_and_is_known_by_its_name(desk: Desk):
    del desk.environment["FLEETBUS_PROVIDERS"], desk.environment["FLEETBUS_HUB_CLUSTER"]
    status, _, err = await desk("nobody")
    assert (status, "set FLEETBUS_HUB_CLUSTER" in err) == (1, True)
    desk.environment["FLEETBUS_HUB_CLUSTER"] = HUB
    status, _, err = await desk("nobody")
    assert (status, "there is no MultiClusterResource default/nobody" in err) == (1, True)


async def test_d25_a_file_without_its_flag_is_explained(desk: Desk):
    for word in ("x.yaml", "shop/web"):
        status, _, err = await desk(word)
        assert (status, f"write -f {word}" in err) == (1, True)


@pytest.mark.slow
async def test_d25_votes_are_read_from_the_bus(rig: Rig, desk: Desk, nats: Client, nats_url: str):
    async with connected(nats_url, name="test") as bus:
        await ensure_distribution(bus)
    canary = {"name": "canary", "clusters": [{"name": "t1"}], "gates": [{"name": "tests"}]}
    rig.create(template=CONFIG_MAP, placement=BOTH, rollout={"waves": [canary]})
    for _ in range(4):
        await rig.reconcile()
    status, out, err = await desk("x")
    assert (status, "nothing to do" in out) == (0, True)
    assert "note: gates also wait for votes" in err
    subject = f"{rig.resource()['status']['rollout']['votes']}.canary.tests"
    await nats.jetstream().publish(subject, b'{"vote": "pass"}')
    status, out, err = await desk("x", "--nats-url", nats_url)
    assert (status, err) == (2, "")
    assert "t2:\n  + create ConfigMap default/m" in out
    status, out, err = await desk("x", "--nats-url", "nats://127.0.0.1:1")
    assert (status, out) == (1, "")
    assert err.startswith("fleetbus: neither votes on gates nor clusters with agents are reached")


async def test_d25_the_store_says_whether_a_service_account_is_required(
    rig: Rig, desk: Desk, valkey_url: str
):
    settings = DistributorSettings(require_service_account=True)
    sharing = asyncio.create_task(share_settings(rig.redis, settings))
    file = desk.write(template=CONFIG_MAP, placement=BOTH)
    try:
        await eventually(lambda: rig.redis.exists(keys.distributor_settings()))
        status, out, _ = await desk("-f", file, redis_url=valkey_url)
    finally:
        await cancel_and_wait(sharing)
    assert status == 1
    assert "ServiceAccountRequired: spec.serviceAccountName: required here" in out
    await rig.redis.delete(keys.distributor_settings())
    status, _, _ = await desk("-f", file, redis_url=valkey_url)
    assert status == 2


async def test_s11_a_plan_shows_nothing_of_a_member_that_a_terminal_obeys(rig: Rig, desk: Desk):
    evil = "\x1b]0;owned\x07\x1b[2K\r\x9b8m\u202e\n  = nothing to do"
    names = dict.fromkeys(("kind", "clusterName", "namespace", "name", "uid", "hub"), evil)
    owner = json.dumps({"apiVersion": API_VERSION, **names})
    metadata = {**CONFIG_MAP["metadata"], "annotations": {"fleetbus.dev/owner": owner}}
    foreign = {**CONFIG_MAP, "metadata": metadata}
    rig.clusters["t1"].create("v1/configmaps", foreign, "default")
    file = desk.write(template=CONFIG_MAP, placement=BOTH)
    _, out, err = await desk("-f", file)
    assert "! conflict" in out
    assert all(line.isprintable() for line in (out + err).splitlines()), out
    assert "\n  = nothing to do" not in out
    _, out, _ = await desk("-f", file, "-o", "json")
    assert all(line.isprintable() for line in out.splitlines()), out
