"""Directed steps with the agents of targets: orders of events that the dice seldom throw."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from typing import Final

from faults.distributors.agents import agent_of
from faults.distributors.settings import BEHIND_AGENTS
from faults.distributors.stage import ENOUGH, WITHIN, Stage, Step, at
from faults.rig.records import Violation

_CHANGES: Final = 6
_UNREACHABLE: Final = "Unreachable"
_FIRST, _OTHER = BEHIND_AGENTS


async def answer_lost(stage: Stage) -> AsyncGenerator[Violation]:
    """D2: what an agent has applied before it died is on record, and goes where nobody wants it."""
    agent = agent_of(_FIRST)
    stage.processes.kept_down.add(agent)
    stage.processes.arm("after PATCH agent/configmaps", agent)
    stage.put("s-lost", at(_FIRST))
    await stage.processes.is_dead(agent, WITHIN)
    await stage.until(lambda: stage.state("s-lost", _FIRST) == _UNREACHABLE)
    stage.put("s-lost", at("t1"))
    await stage.acted("s-lost")
    stage.processes.arm("", agent)
    stage.processes.kept_down.discard(agent)
    await stage.processes.start(agent)
    if not await stage.until(lambda: not stage.copy(_FIRST, "s-lost")):
        yield Violation("D2 lost answer", "an object whose apply was not answered was left over")
        stage.remove(_FIRST, "s-lost")
    await stage.drop("s-lost")


async def deletion_lost(stage: Stage) -> AsyncGenerator[Violation]:
    """D7: a deletion that died with its agent is sent again, and nothing is left on record."""
    agent = agent_of(_FIRST)
    stage.put("s-delete", at(_FIRST, "t1"))
    await stage.placed("s-delete", _FIRST, "t1")
    for side in ("before", "after"):
        stage.processes.arm(f"{side} DELETE agent/configmaps", agent)
        stage.put("s-delete", at("t1"))
        await stage.processes.is_dead(agent, WITHIN)
        stage.processes.arm("", agent)
        await stage.processes.start(agent)
        if not await stage.until(lambda: not stage.copy(_FIRST, "s-delete")):
            yield Violation("D7 lost deletion", "an object was left over whose deletion was lost")
        stage.put("s-delete", at(_FIRST, "t1"))
        await stage.placed("s-delete", _FIRST, "t1")
    await stage.drop("s-delete")


async def two_agents(stage: Stage) -> AsyncGenerator[Violation]:
    """Two agents share the calls of a cluster; that each runs once is checked by their notes."""
    stage.put("s-two", at(_FIRST))
    await stage.placed("s-two", _FIRST)
    stage.world.agents.add_second(_FIRST)
    for number in range(_CHANGES):
        stage.put("s-two", at(_FIRST), stage.template("s-two", k=str(number)))
        if not await stage.until(lambda: stage.ready("s-two")):
            yield Violation("D3 two agents", "a change was not applied while there are two agents")
    stage.world.agents.remove_second(_FIRST)
    await stage.drop("s-two")


async def stood_still(stage: Stage) -> AsyncGenerator[Violation]:
    """D2: what waited for an agent that stood still is not applied after nobody wants it."""
    agent = agent_of(_FIRST)
    stage.put("s-still", at("t1"))
    await stage.placed("s-still", "t1")
    stage.processes.signal(agent, signal.SIGSTOP)
    stage.put("s-still", at("t1", _FIRST))
    await stage.until(lambda: stage.state("s-still", _FIRST) == _UNREACHABLE)
    stage.world.agents.add_second(_FIRST)
    await stage.drop("s-still")
    stage.processes.signal(agent, signal.SIGCONT)
    await asyncio.sleep(ENOUGH)
    if stage.copy(_FIRST, "s-still"):
        yield Violation("D2 late", "an object was applied after its owner was gone")
        stage.remove(_FIRST, "s-still")
    stage.world.agents.remove_second(_FIRST)


async def answers_held(stage: Stage) -> AsyncGenerator[Violation]:
    """D2: an agent whose answers do not arrive has applied what nobody wants any more."""
    link = stage.world.agents.nats_links[agent_of(_FIRST)]
    stage.put("s-held", at("t1"))
    await stage.placed("s-held", "t1")
    link.hold(down=False)
    stage.put("s-held", at("t1", _FIRST))
    await stage.until(lambda: stage.state("s-held", _FIRST) == _UNREACHABLE)
    stage.put("s-held", at("t1"))
    await stage.acted("s-held")
    link.heal()
    if not await stage.until(lambda: not stage.copy(_FIRST, "s-held")):
        yield Violation("D2 held answer", "an object whose apply was not answered was left over")
        stage.remove(_FIRST, "s-held")
    await stage.drop("s-held")


async def agents_swapped(stage: Stage) -> AsyncGenerator[Violation]:
    """W13: while two agents dial each other's API server, nobody writes to the wrong cluster."""
    agents = stage.world.agents
    stage.put("s-led", at(_FIRST))
    await stage.placed("s-led", _FIRST)
    await agents.lead(_FIRST, _OTHER)
    await agents.lead(_OTHER, _FIRST)
    await asyncio.sleep(1)  # the distributors may be about to check who answers
    stage.put("s-led", at(_FIRST), stage.template("s-led", k="new"))
    await asyncio.sleep(ENOUGH)
    if stage.copy(_OTHER, "s-led"):
        yield Violation("W13 wrong cluster", f"an object of {_FIRST} was written to {_OTHER}")
    await agents.lead(_FIRST, _FIRST)
    await agents.lead(_OTHER, _OTHER)
    await stage.placed("s-led", _FIRST)
    stage.remove(_OTHER, "s-led")
    await stage.drop("s-led")


AGENT_STEPS: Final[tuple[Step, ...]] = (
    answer_lost,
    deletion_lost,
    two_agents,
    stood_still,
    answers_held,
    agents_swapped,
)
