"""`kubectl-multicluster join` and `unjoin`, through the query API (T20)."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

import pytest

from fleetbus_cli.kubectl import main
from support.rigs.membership import CLUSTERS
from support.rigs.query_api import Ended
from support.rigs.secured_api import OWN_TOKEN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from support.rigs.membership import MembershipRig

    Run = Callable[..., Awaitable[Ended]]


@pytest.fixture
def run(
    rig: MembershipRig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLEETBUS_API_URL", rig.api.url)

    async def run_command(token: str, *argv: str) -> Ended:
        capsys.readouterr()
        status = await asyncio.to_thread(main, [*argv, "--token", token])
        ended = Ended.read(status, capsys)
        # The API is in this process, too, and logs to the same place.
        lines = [line for line in ended.out.splitlines() if not re.search(r"\[\w+ +\]", line)]
        return ended._replace(out="\n".join(lines))

    return run_command


async def test_t20_join_and_unjoin_with_the_words_of_the_seed(
    rig: MembershipRig, run: Run, tmp_path: Path
):
    ann = rig.joiner("ann")
    file = tmp_path / "c3"
    # Of a file with more contexts only the chosen one leaves this machine: the other is refused.
    tree = json.loads(rig.kubeconfig("eu1"))
    tree["users"].append({"name": "other", "user": {"exec": {"command": "id"}}})
    tree["contexts"].append({"name": "other", "context": {"cluster": "c", "user": "other"}})
    file.write_text(json.dumps(tree))
    joined = await run(ann, "join", "c3", "--file", str(file))
    assert (joined.status, joined.out) == (0, "join cluster successful"), joined.err
    assert rig.api.hub.get(CLUSTERS, None, "c3") is not None
    again = await run(ann, "join", "c3", "--file", str(file))
    assert (again.status, "taken" in again.err) == (1, True)
    refused = await run(ann, "join", "c4", "--file", str(file), "--context", "other")
    assert (refused.status, "'exec' is not allowed" in refused.err) == (2, True)
    left = await run(ann, "unjoin", "c3")
    assert (left.status, left.out) == (0, "unjoin cluster successful"), left.err
    assert rig.api.hub.get(CLUSTERS, None, "c3") is None
    assert OWN_TOKEN not in joined.err + again.err + refused.err


async def test_t20_insecure_is_a_flag(rig: MembershipRig, run: Run, tmp_path: Path):
    file = tmp_path / "c3"
    file.write_text(rig.kubeconfig("eu1"))
    assert (
        await run(rig.joiner("ann"), "join", "c3", "--file", str(file), "--insecure")
    ).status == 0
    cluster_object = rig.api.hub.get(CLUSTERS, None, "c3") or {}
    assert cluster_object["spec"]["insecureSkipTLSVerify"] is True


async def test_a7_without_rights_the_command_says_which_are_missing(
    rig: MembershipRig, run: Run, tmp_path: Path
):
    file = tmp_path / "c3"
    file.write_text(rig.kubeconfig("eu1"))
    ended = await run(rig.joiner("eve", without="clusters"), "join", "c3", "--file", str(file))
    assert (ended.status, ended.out) == (1, "")
    assert "create clusters.fleetbus.dev" in ended.err
    assert len(ended.err.splitlines()) == 1
