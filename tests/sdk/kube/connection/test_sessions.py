"""The connections of one client: both sessions close, whatever happens meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from fleetbus.kube.connection.sessions import Sessions
from fleetbus_emulator.apiserver import Cluster, serve


async def _unchecked(_method: str) -> bool:
    return False


async def test_a_cancelled_close_closes_both_sessions():
    sessions = Sessions(buffer=2**16, guard=None, verify=_unchecked)
    shared, alone = sessions.get(), sessions.get(alone=True)
    async with serve([Cluster("eu1")]) as servers:
        url = servers.kubeconfig()["clusters"][0]["cluster"]["server"] + "/version"
        # With a connection open, closing takes a moment, in which it can be cancelled.
        async with shared.get(url, ssl=False) as response:
            await response.read()
        closing = asyncio.create_task(sessions.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert shared.closed
    assert alone.closed
