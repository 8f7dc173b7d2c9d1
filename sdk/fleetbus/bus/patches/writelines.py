"""A fix for asyncio's `writelines` in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 (rule B14).

There it never pauses the writer (CVE-2024-12254), and nats-py writes with it: with a stalled server
the buffer grew to 1.1 GB in two seconds. uvloop has its own transports and is not affected.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import Any, Final, cast

_AFFECTED: Final = (((3, 12, 0), (3, 12, 9)), ((3, 13, 0), (3, 13, 2)))


def is_affected(version: tuple[int, ...]) -> bool:
    """Whether this Python's transports never pause their writer."""
    return any(first <= version < fixed for first, fixed in _AFFECTED)


def patch_writelines(version: tuple[int, ...] = sys.version_info[:3]) -> bool:
    """Make asyncio's socket transport pause its writer; return whether it was affected."""
    if not is_affected(version):
        return False
    transport = cast("Any", asyncio).selector_events._SelectorSocketTransport  # noqa: SLF001
    patch_transport(transport)
    return True


def patch_transport(transport: Any) -> None:
    """Patch one transport class, once."""
    plain = transport.writelines
    if getattr(plain, "is_patched", False):
        return

    def writelines(self: Any, lines: Iterable[bytes]) -> None:
        plain(self, lines)
        if self._buffer:
            self._maybe_pause_protocol()

    cast("Any", writelines).is_patched = True
    transport.writelines = writelines
