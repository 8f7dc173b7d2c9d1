"""Sentinels and a Cluster behind TLS: their logins are rotated while a queue works (rules S2, S8).

The long form, with failovers between the rotations, is `make scenarios`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.rigs.secured_store import Secured, secured_cluster, secured_sentinel


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [secured_sentinel, pytest.param(secured_cluster, marks=pytest.mark.full)]
)
async def test_s2_rotations_under_load_lose_no_item_behind_tls(tmp_path: Path, kind: Secured):
    async with kind(tmp_path) as store, store.under_load() as load:
        await load.goes_on()
        await store.rotate_password("two")
        await load.goes_on()
        await store.rotate_certificates("second")
        await load.goes_on()
        await store.check_that_all_log_in()
