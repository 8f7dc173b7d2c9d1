"""T9: clusters from kubeconfig files that come, change and go while everything runs."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import yaml

from fleetbus.clusters.providers.kubeconfig import KubeconfigProvider
from fleetbus.controller.controller import Controller
from support.eventually import eventually
from support.full import FULL
from support.rigs.fleet import Recorder, Rig
from support.rigs.scenario import MAPS, WITHIN, Scenario, access, scenario

OpenRig = Callable[..., Awaitable[Rig]]
SERVERS = ("a", "b", "c", "d", "e", "f")
NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    if not FULL:
        defaults: Any = KubeconfigProvider.__init__.__kwdefaults__
        monkeypatch.setitem(defaults, "every", timedelta(milliseconds=50))


@pytest.fixture
async def story(open_rig: OpenRig, tmp_path: pathlib.Path) -> AsyncGenerator[Scenario]:
    """A fleet without clusters: a directory and a file are watched, and neither is there."""
    rig = await open_rig(*SERVERS)
    for name in SERVERS:
        rig.clusters[name].create(MAPS, {"metadata": {"name": f"of-{name}"}}, "default")
    async with scenario(rig) as opened:
        opened.use({"type": "kubeconfig", "paths": [str(tmp_path / "d"), str(tmp_path / "extra")]})
        recorder = Recorder(Controller("files"), MAPS)
        recorder.controller.watch(MAPS)
        (tmp_path / "d").mkdir()
        opened.start_reconciler(recorder)
        await opened.start_pool()
        yield opened
        await rig.aclose()


def put(path: pathlib.Path, document: Any) -> None:
    """Write a file as editors do: whole, under another name first."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(yaml.safe_dump(document))
    partial.rename(path)


async def has(story: Scenario, **servers: str) -> bool:
    """Whether these are the clusters, each in step with the server that it is to lead to."""
    if not await story.are_members(*servers) or not await story.is_synced(*servers):
        return False
    return all([await story.rows(name) == {f"of-{servers[name]}"} for name in servers])


@pytest.mark.full  # tests/sdk/clusters/providers has it, without the services
async def test_t9_files_come_change_and_go(story: Scenario, tmp_path: pathlib.Path) -> None:
    rig, (recorder,) = story.rig, story.recorders
    first, extra = tmp_path / "d" / "kubeconfig.yaml", tmp_path / "extra"
    assert await story.members() == set()
    put(first, access(rig, "a"))
    await eventually(lambda: has(story, a="a"), WITHIN)
    put(extra, access(rig, "b", "c"))
    await eventually(lambda: has(story, a="a", b="b", c="c"), WITHIN)
    assert (await story.record("c")).labels == {
        "fleetbus.dev/file": str(extra),
        "fleetbus.dev/context": "c",
    }
    extra.unlink()
    await eventually(lambda: has(story, a="a"), WITHIN)
    await eventually(lambda: not rig.clusters["b"].open_watches, WITHIN)
    put(first, access(rig, "d", "e", "f"))
    await eventually(lambda: has(story, d="d", e="e", f="f"), WITHIN)
    await eventually(lambda: not rig.clusters["a"].open_watches, WITHIN)
    assert story.lives("a") == 1, "it was joined anew when another file changed"

    put(tmp_path / "d" / "x.kubeconfig", access(rig, e="c"))
    expected = {"d": "d", "f": "f", "kubeconfig-e": "e", "x-e": "c"}
    await eventually(lambda: has(story, **expected), WITHIN)
    # A list is complete before its watch is open.
    await eventually(lambda: all(rig.clusters[name].open_watches == 1 for name in "cdef"), WITHIN)
    await eventually(lambda: recorder.of("x-e", "default", "of-c"), WITHIN)
    assert not story.deletions()
    await story.close()


@pytest.mark.full  # tests/sdk/clusters/providers has it, without the services
async def test_t9_a_bad_entry_harms_no_other_and_an_equal_file_joins_nothing_anew(
    story: Scenario, tmp_path: pathlib.Path
) -> None:
    rig = story.rig
    document = access(rig, "a", "b", bad="c", dead="c")
    document["clusters"][1]["cluster"]["proxy-url"] = rig.servers.url("b")
    document["contexts"][2]["context"]["cluster"] = "no-such"
    document["clusters"][3]["cluster"]["server"] = f"http://{NOBODY}"
    put(tmp_path / "d" / "kubeconfig.yaml", document)
    (tmp_path / "d" / "half.kubeconfig").write_text("clusters:\n- cluster: {server: 'http")
    await eventually(lambda: story.is_synced("a", "b"), WITHIN)
    assert await story.are_members("a", "b", "bad", "dead")
    await eventually(lambda: is_reported(story, "dead", "Unreachable", NOBODY), WITHIN)
    await eventually(lambda: is_reported(story, "bad", "Unusable", "no-such"), WITHIN)
    (reported,) = [line for line in story.lines("cluster_skipped") if "half" in line["entry"]][:1]
    assert "half.kubeconfig" in reported["error"]

    put(tmp_path / "d" / "kubeconfig.yaml", document)
    await story.close()  # it takes long enough for the file to be read again
    assert (story.lives("a"), story.lives("b")) == (1, 1)
    assert (story.watches_opened("a"), story.watches_opened("b")) == (1, 1)
    assert not story.lines("cluster_replaced")
    assert not story.lines("cluster_access_changed")


async def is_reported(story: Scenario, name: str, reason: str, message: str) -> bool:
    record = await story.record(name)
    return not record.connected and record.reason == reason and message in record.message
