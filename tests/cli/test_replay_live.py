"""`fleetbus replay --live`: recorded events, and writes that are sent (R9)."""

from __future__ import annotations

import asyncio
import pathlib
import sys
import threading
from collections.abc import Generator

import pytest

from fleetbus.archive.lines import to_line
from fleetbus_cli.app import app
from fleetbus_cli.main import main
from fleetbus_emulator.apiserver import Cluster, serve
from support.processes.in_process_commands import status_of
from support.stores.snapshot import Source

MAPS = "v1/configmaps"
COPIER = """
import fleetbus

copier = fleetbus.Controller("copier")
copier.watch("v1/configmaps", clusters=["a"])

@copier.reconcile
async def copy(request, fleet):
    source = await fleet.cluster("a").get("v1/configmaps", request.namespace, request.name)
    target = fleet.cluster("b")
    metadata = {"name": request.name, "namespace": request.namespace}
    if source is None:
        found = await target.get("v1/configmaps", **metadata)  # as it has written it
        await target.delete("v1/configmaps", **metadata, uid=found["metadata"]["uid"])
        return
    data = {"k": source["metadata"]["resourceVersion"]}
    await target.apply("v1/configmaps", {"apiVersion": "v1", "kind": "ConfigMap",
                                         "metadata": metadata, "data": data})
"""


@pytest.fixture
def clusters(tmp_path: pathlib.Path) -> Generator[dict[str, Cluster]]:
    """Two clusters that answer while this thread runs a command."""
    loop, stop, started = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    clusters_by_name = {name: Cluster(name) for name in ("a", "b")}

    async def live() -> None:
        async with serve(list(clusters_by_name.values())) as servers:
            servers.write_kubeconfig(tmp_path / "kubeconfig")
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(live(),), name="clusters")
    thread.start()
    assert started.wait(10)
    yield clusters_by_name
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


def test_r9_with_live_the_writes_are_sent_and_reads_are_those_of_the_recording(
    clusters: dict[str, Cluster],
    tmp_path: pathlib.Path,
    valkey_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    maps = Source(cluster="a", resource="configmaps")
    events = [
        maps.event("listed", "x", 10, namespace="default"),
        maps.event("listed", "y", 11, namespace="default"),
        maps.event("modified", "y", 12, namespace="default"),
        maps.event("deleted", "x", 13, namespace="default"),
    ]
    recording, module = tmp_path / "events.jsonl", tmp_path / "copier.py"
    recording.write_text("".join(to_line(event) + "\n" for event in events))
    module.write_text(COPIER)
    counts = {name: len(cluster.requests) for name, cluster in clusters.items()}
    options = [
        "--live",
        "--cluster",
        "b",
        "--kubeconfig",
        str(tmp_path / "kubeconfig"),
        "--store",
        valkey_url,
    ]
    arguments = ["fleetbus", "replay", str(recording), str(module), *options]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(app, "registered_groups", [])
    status = status_of(main)
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert "4 events, 4 runs; writes were sent" in printed.err
    assert [
        config_map["metadata"]["name"] for config_map in clusters["b"].list(MAPS, "default")
    ] == ["y"]
    live = clusters["b"].get(MAPS, "default", "y")
    assert live is not None
    assert live["data"] == {"k": "12"}
    sent = list(clusters["b"].requests)[counts["b"] :]
    assert [(request.verb, request.path.rpartition("/")[2]) for request in sent] == [
        *(("patch", "x"), ("patch", "y"), ("patch", "y"), ("delete", "x"))
    ], "own writes are not waited for, they stand in the replay"
    assert len(clusters["a"].requests) == counts["a"], "the source is read from the recording"
