"""A token that is rotated is used without a restart, and a 401 is reported: rule W19."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from fleetbus.kube.connection.config import read_kube_config
from support.eventually import eventually
from support.rigs.watcher import Rig, rig_for
from support.servers.plain_http import http_client


@pytest.fixture
async def rig(nats_url: str) -> AsyncGenerator[Rig]:
    async with rig_for(nats_url, tokens={"first": "watcher"}) as opened:
        yield opened


def write_kubeconfig(rig: Rig, path: Path, **user: str) -> None:
    document: dict[str, Any] = rig.servers.kubeconfig()
    document["users"] = [{"name": each["name"], "user": user} for each in document["users"]]
    path.write_text(json.dumps(document))


def rotate(rig: Rig, old: str, new: str) -> None:
    """From now on only the new token is known; watches that are open end."""
    rig.cluster.credentials.revoke_token(old)
    rig.cluster.credentials.add_token(new, "watcher")
    rig.cluster.close_watches()


async def is_reported(rig: Rig) -> bool:
    beats = await rig.heartbeats()
    return bool(beats) and not beats[-1].connected and beats[-1].reason == "Unauthorized"


@pytest.mark.parametrize("in_file", [False, True], ids=["token", "tokenFile"])
async def test_w19_a_rotated_token_is_used_without_a_restart_and_no_event_is_lost(
    rig: Rig, tmp_path: Path, *, in_file: bool
):
    path, token = tmp_path / "kubeconfig", tmp_path / "token"

    def write(value: str) -> None:
        token.write_text(value)
        write_kubeconfig(rig, path, **({"tokenFile": str(token)} if in_file else {"token": value}))

    write("first")
    rig.write("a")
    port = tmp_path / "port"
    async with rig.watching(config=read_kube_config(path), port_file=port):
        rotate(rig, "first", "second")
        rig.write("b")
        rig.remove("a")
        await eventually(lambda: is_reported(rig))
        async with http_client(f"http://127.0.0.1:{port.read_text().strip()}") as asking:
            answer = await asking.get("/readyz")
        assert "Unauthorized" in answer.text
        if in_file:
            token.write_text("second")  # the kubeconfig stays as it is
        else:
            write("second")
        await eventually(rig.is_mirrored)
        assert len(rig.requests("list")) == 1
        assert {e.name for e in await rig.events() if str(e.verb) == "deleted"} == {"a"}


async def test_w19_a_file_is_followed_before_its_old_token_is_refused(rig: Rig, tmp_path: Path):
    path = tmp_path / "kubeconfig"
    write_kubeconfig(rig, path, token="first")
    async with rig.watching(config=read_kube_config(path)):
        path.write_text("{half")  # somebody writes it, and is not done
        rig.cluster.close_watches()
        rig.write("a")
        await eventually(rig.is_mirrored)
        write_kubeconfig(rig, path, token="second")
        rotate(rig, "first", "second")
        rig.write("b")
        await eventually(rig.is_mirrored)
    assert not [request for request in rig.cluster.requests if request.status == 401]
