"""The Lua scripts of the snapshot, ready to be registered with a client."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript


_WHEN_FULL = "#!lua flags=allow-oom\n"
"""The server runs such a script to its end although it has used up its maxmemory."""


def register(
    redis: Redis, name: str, *, after: str = "guard", when_full: bool = False
) -> AsyncScript:
    """A callable script; it loads itself again after NOSCRIPT, as after a restart (rule P16).

    Args:
        redis: the client that will call it.
        name: of its file.
        after: the file that stands before it.
        when_full: let it write in a full store as well: for what is small, bounded and needed so
            that the store gets room again. The server refuses any other script there as soon as
            its first write is one that may take memory; one that begins with a deletion runs on.
    """
    folder = resources.files("fleetbus.snapshot").joinpath("lua")
    first, script = (folder.joinpath(f"{part}.lua").read_text() for part in (after, name))
    return redis.register_script((_WHEN_FULL if when_full else "") + first + script)
