"""Each rule of the order guard taken away is caught by the comparison with the model (V6)."""

from __future__ import annotations

import random
from importlib import resources
from typing import TYPE_CHECKING

import pytest
from snapshot_lanes import compare_store, make_lane, run_lanes
from snapshot_rig import Snapshot

from fleetbus.snapshot.scripts import register

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

MUTATIONS = {
    "tonumber-compare": (
        "if #a ~= #b then return #a > #b end\n  return a > b",
        "return (tonumber(a) or -1) > (tonumber(b) or -1)",
    ),
    "byte-compare": ("if #a ~= #b then return #a > #b end\n", ""),
    "no-guard": ("if newer(event.version, entry.version) then", "if true then"),
    "false-deletions-stay": ("event.code == 'L' and entry.state == 'D' and", "false and"),
    "false-deletions-come-again": ("return version ~= nil and newer(", "return false and newer("),
    "no-floor": ("and not newer(event.version, state.floor)", "and false"),
    "floor-not-for-tombstones": (
        "local is_held = entry and entry.state == 'L'",
        "local is_held = entry",
    ),
    "no-rank": (
        "if event.code == 'L' and (newer(state.floor, lineage.version)",
        "if false and (newer(state.floor, lineage.version)",
    ),
    "no-count": (
        "if state.counts[rank] ~= state.ends[rank] then return false end",
        "if state.ends[rank] == -1 then return false end",
    ),
    "count-every-time": (
        "and rank_newer(lineage.version, lineage.id, version or '', id or '')",
        "",
    ),
    "older-incarnation-accepted": (
        "if newer(state.incarnation, lineage.incarnation) then return STALE, false end",
        "",
    ),
    "incarnation-resets-nothing": ("redis.call('DEL', lineage.epochs)", ""),
    "marks-outlive-the-incarnation": (
        "if newer(lineage.incarnation, entry.incarnation) then return APPLIED, false end",
        "if newer(lineage.incarnation, entry.incarnation) then return APPLIED, true end",
    ),
    "unknown-deletes-leave-no-tombstone": (
        "local entry = entry_of(lineage, event.key)\n",
        "local entry = entry_of(lineage, event.key)\n"  # noqa: ISC004 -- a pair: old, new
        "  if not entry and event.code == 'D' then return APPLIED end\n",
    ),
    "old-index-entries-stay": (
        "for term in each(old) do redis.call('SREM', prefix .. term, member) end",
        "",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
async def test_v6_a_rule_taken_away_is_caught(
    redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
):
    old, new = MUTATIONS[name]
    folder = resources.files("fleetbus.snapshot")
    text = "".join(folder.joinpath(f"{part}.lua").read_text() for part in ("guard", "apply"))
    assert old in text, "the mutation no longer fits the script"
    mutant = redis.register_script(text.replace(old, new))

    def register_mutant(client: Redis, script: str) -> AsyncScript:
        return mutant if script == "apply" else register(client, script)

    monkeypatch.setattr("fleetbus.snapshot.write.register", register_mutant)
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    with pytest.raises(AssertionError):
        await run_and_compare(redis, snapshot)


async def run_and_compare(redis: Redis, snapshot: Snapshot) -> None:
    """The sequences of test_snapshot_model, group by group, until one differs."""
    for first in range(0, 2_000, 50):
        lanes = [make_lane(seed) for seed in range(first, first + 50)]
        await run_lanes(snapshot, lanes, random.Random(first))
        for lane in lanes:
            await compare_store(redis, lane)
