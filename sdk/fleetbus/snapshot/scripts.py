"""The Lua scripts of the snapshot, ready to be registered with a client."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript


def register(redis: Redis, name: str, *, after: str = "guard") -> AsyncScript:
    """A callable script; it loads itself again after NOSCRIPT, as after a restart (rule P16)."""
    folder = resources.files("fleetbus.snapshot")
    first, script = (folder.joinpath(f"{part}.lua").read_text() for part in (after, name))
    return redis.register_script(first + script)
