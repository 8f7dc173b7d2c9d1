"""Sentinels and a Cluster behind TLS: rotations and failovers while a queue works (S2, P16).

The short form, without failovers, is tests/sdk/store/test_tls_topologies.py.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from support.rigs.secured_store import Secured, secured_cluster, secured_sentinel

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
]
CLUSTER = partial(secured_cluster, has_replicas=True)


@pytest.mark.parametrize("kind", [secured_sentinel, CLUSTER], ids=["sentinel", "cluster"])
async def test_s2_rotations_around_a_failover_lose_no_item(tmp_path: Path, kind: Secured):
    async with kind(tmp_path) as store, store.under_load() as load:
        for number in range(3):
            await load.goes_on()
            await store.rotate_password(f"word{number}")
            await load.goes_on()
            await store.rotate_certificates(f"authority{number}")
            await load.goes_on()
            if number == 1:  # the new master is reached with what was rotated before and after
                async with load.paused():
                    await store.fail_over()
        await store.check_that_all_log_in()
