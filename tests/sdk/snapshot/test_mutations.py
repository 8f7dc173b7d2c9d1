"""Each rule of the order guard taken away is caught by the comparison with the model (V6)."""

from __future__ import annotations

import random
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.snapshot.scripts import register
from support.stores.snapshot import Snapshot
from support.stores.snapshot_sequences import CLUSTERS, compare_store, make_sequence, run_sequences

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

SCRIPTS = ("apply", "audit", "collect_tombstones")
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
        "if state.counts[lineage.rank] ~= state.ends[lineage.rank] then return end",
        "if state.ends[lineage.rank] == -1 then return end",
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
    "clean-audits-raise-nothing": ("redis.call('HSET', EPOCHS, 'floor', VERSION)", ""),
    "audits-in-doubt-raise-the-floor": (
        "if is_complete(held) and held[7] == '0' then",
        "if is_complete(held) then",
    ),
    "audits-of-another-history-raise-the-floor": ("return held[1] == INCARNATION and", "return"),
    "tombstones-above-the-floor-go": ("if newer(entry.version, scope.floor) then", "if false then"),
    "tombstones-that-count-in-a-running-epoch-go": (
        "return not rank_newer(version, id, scope.version, scope.id)",
        "return true",
    ),
    "other-scopes-are-not-asked": ("if not has_passed(scope, entry)", "if false"),
    "old-index-entries-stay": (
        "for term in each(old) do redis.call('SREM', prefix .. term, member) end",
        "",
    ),
}


ALWAYS = ("no-floor", "clean-audits-raise-nothing", "incarnation-resets-nothing")
"""Mutations that also `make test` tries; the histories themselves run there in full."""


@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.full) for name in MUTATIONS],
)
async def test_v6_a_rule_taken_away_is_caught(
    redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
):
    old, new = MUTATIONS[name]
    folder = resources.files("fleetbus.snapshot").joinpath("lua")
    guard, *texts = (
        folder.joinpath(f"{script}.lua").read_text() for script in ("shared/guard", *SCRIPTS)
    )
    mutated = next((i for i, text in enumerate(texts) if old in guard + text), None)
    assert mutated is not None, "the mutation no longer fits the script"
    mutant = redis.register_script((guard + texts[mutated]).replace(old, new))

    def register_mutant(client: Redis, script: str, **options: Any) -> AsyncScript:
        is_it = script == SCRIPTS[mutated]
        return mutant if is_it else register(client, script, **options)

    for module in ("write", "removal", "audit"):
        monkeypatch.setattr(f"fleetbus.snapshot.{module}.register", register_mutant)
    snapshot = Snapshot(redis)
    await snapshot.set_up(*CLUSTERS)
    with pytest.raises(AssertionError):
        await run_and_compare(snapshot)


async def run_and_compare(snapshot: Snapshot) -> None:
    """The sequences of test_snapshot_model, group by group, until one differs."""
    for first in range(0, 2_000, 50):
        sequences = [make_sequence(seed) for seed in range(first, first + 50)]
        await run_sequences(snapshot, sequences, random.Random(first))
        for sequence in sequences:
            await compare_store(snapshot, sequence)
