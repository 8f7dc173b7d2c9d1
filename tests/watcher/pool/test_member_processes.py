"""Members of the pool as processes that are paused and killed, and their rights: rules W22, S3."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fleetbus_watcher.main import main
from support.eventually import eventually
from support.processes.in_process_commands import one_line, status_of
from support.rigs.pool import PoolRig, pool_rig
from support.servers.health_probes import read_probe
from support.servers.restricted_nats import restricted_server

NAMES = [f"c{number}" for number in range(6)]


@pytest.mark.slow
async def test_w22_a_member_that_is_paused_or_killed_is_replaced_and_does_no_harm(
    nats_url: str, tmp_path: Path
):
    """Paused past its lease it wakes and stops what is not its own; killed it is replaced."""
    async with pool_rig(nats_url, tmp_path, *NAMES) as rig:
        rig.join(*NAMES)
        rig.start("r-0")
        async with rig.process("p-1") as member:
            owners = await rig.shared("r-0", "p-1")
            await eventually(rig.have_checkpoints)
            member.send_signal(signal.SIGSTOP)
            await eventually(lambda: _is_all_of(rig, "r-0"))
            for name in NAMES:
                rig.write(name, "paused")
            await eventually(rig.are_mirrored)
            member.send_signal(signal.SIGCONT)
            assert await rig.shared("r-0", "p-1") == owners
            for name in NAMES:
                rig.write(name, "awake")
            await eventually(rig.are_mirrored)
            member.kill()
            await rig.shared("r-0")
        for name in NAMES:
            rig.write(name, "killed")
        await eventually(rig.are_mirrored)
        assert await rig.repeated() == []
        assert {name: rig.lists(name) for name in NAMES} == dict.fromkeys(NAMES, 1)


async def _is_all_of(rig: PoolRig, member: str) -> bool:
    return set((await rig.owners()).values()) == {member}


@pytest.mark.slow
async def test_s3_a_member_of_the_pool_needs_no_more_than_its_rights(tmp_path: Path):
    async with (
        restricted_server(tmp_path) as address,
        pool_rig(f"nats://admin:p@{address}", tmp_path, *NAMES[:2]) as rig,
    ):
        rig.join(*NAMES[:2])
        rig.start("r-0", nats_url=f"nats://pool:p@{address}")
        await rig.shared("r-0")
        rig.start("r-1", nats_url=f"nats://pool:p@{address}")
        await rig.shared("r-0", "r-1")
        rig.write("c0", "a")
        await eventually(rig.are_mirrored)
        await rig.stop("r-0")
        await rig.shared("r-1")
        rig.leave("c0")
        await rig.shared("r-1", clusters=["c1"])
        assert rig.is_running("r-1")


async def test_w22_ready_means_joined_and_synced(nats_url: str, tmp_path: Path):
    async with pool_rig(nats_url, tmp_path, *NAMES[:2]) as rig:
        port = rig.start("r-0")
        rig.join(*NAMES[:2])
        reasons = list[str]()
        # No pause between probes: a member that is ready for a moment, too early, is seen.
        while (answer := await read_probe(port, "/readyz"))[0] != 200:
            reasons.append(answer[1])
        assert any("pool" in reason for reason in reasons)
        assert [rig.lists(name) for name in NAMES[:2]] == [1, 1]
        await rig.shared("r-0")
        await eventually(lambda: _counts_its_clusters(port))


async def _counts_its_clusters(port: Path) -> bool:
    """Whether the metrics have both clusters: their number is set once a turn is over."""
    _, metrics = await read_probe(port, "/metrics")
    return all(
        line in metrics
        for line in (
            "fleetbus_watcher_pool_clusters 2.0",
            'fleetbus_watcher_events_total{cluster="c1",resource="core/configmaps"}',
            'fleetbus_watcher_in_flight{cluster="*"}',
        )
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--pool"], "FLEETBUS_PROVIDERS"),
        (["--pool", "--replica", "a..b"], "'a..b'"),
    ],
)
def test_w22_what_a_pool_cannot_use_is_reported_with_status_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
):
    assert status_of(main, arguments) == 2
    assert expected in one_line(capsys)


@pytest.mark.parametrize(
    "arguments", [["--pool", "--cluster", "a"], ["--pool", "--kubeconfig", "a.yaml"]]
)
def test_w22_options_of_a_single_cluster_are_none_of_a_pool(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
):
    assert status_of(main, arguments) == 2
    assert "--pool" in capsys.readouterr().err


def test_w22_settings_of_a_single_cluster_are_none_of_a_pool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FLEETBUS_WATCHER_KUBECONFIG", "a.yaml")
    assert status_of(main, ["--pool"]) == 2
    assert "FLEETBUS_WATCHER_KUBECONFIG" in one_line(capsys)


def test_w22_a_selector_that_cannot_be_read_is_reported_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FLEETBUS_WATCHER_POOL_SELECTOR", "a in (")
    assert status_of(main, ["--pool"]) == 2
    assert "FLEETBUS_WATCHER_POOL_SELECTOR" in one_line(capsys)
