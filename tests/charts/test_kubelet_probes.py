"""Probes of the tests' kubelet (tests/support/kubelet)."""

from __future__ import annotations

import asyncio

import pytest

from support.kubelet.probes import Target


async def test_a_cancellation_that_comes_with_the_end_of_a_program_is_kept(
    monkeypatch: pytest.MonkeyPatch,
):
    """A pod whose probe goes on would never be gone."""
    wait = asyncio.subprocess.Process.wait

    async def cancelled_as_it_ends(process: asyncio.subprocess.Process) -> int:
        status = await wait(process)
        asyncio.get_running_loop().call_soon(probes.cancel)
        return status

    async def repeat() -> None:
        while True:
            await target.run(["true"], 10)
            await asyncio.sleep(60)  # until it is cancelled

    monkeypatch.setattr(asyncio.subprocess.Process, "wait", cancelled_as_it_ends)
    target = Target("127.0.0.1", {}, [], {})
    probes = asyncio.create_task(repeat())
    await asyncio.wait([probes], timeout=5)
    assert probes.cancelled()
