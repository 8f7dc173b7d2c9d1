"""Registers the Lua scripts of the snapshot with a client."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript


_WHEN_FULL = "#!lua flags=allow-oom\n"
"""Lets a script run to its end although the server has used up its maxmemory."""


def register(
    redis: Redis, name: str, *, after: str = "guard", when_full: bool = False
) -> AsyncScript:
    """Make a callable script; it loads itself again after NOSCRIPT, as after a restart (rule P16).

    Args:
        redis: the client that will call it.
        name: of its file.
        after: the file of `lua/shared` that precedes it; empty for none.
        when_full: let it write in a full store: for writes that are small, bounded and needed to
            free memory. The server refuses any other script there at its first write that may take
            memory; one whose first write is a deletion runs on.
    """
    return redis.register_script((_WHEN_FULL if when_full else "") + script_text(name, after=after))


def script_text(name: str, *, after: str) -> str:
    """Read a script, preceded by a file of `lua/shared`."""
    folder = resources.files("fleetbus.snapshot").joinpath("lua")
    files = (f"shared/{after}", name) if after else (name,)
    return "".join(folder.joinpath(f"{file}.lua").read_text() for file in files)
