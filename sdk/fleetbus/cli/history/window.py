"""Notes about the limits of answers about the past, on stderr (rule A9)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

_NAMED: Final = 5


def note_window(window: Mapping[str, Any]) -> None:
    """Say where the past has gaps."""
    for gap in window["gaps"][:_NAMED]:
        where = f"{gap['cluster']}, " if gap["cluster"] else ""
        print(f"note: {where}up to {gap['to'][:19]}Z: {gap['reason']}", file=sys.stderr)


def warn_undetermined(objects: Sequence[Mapping[str, str]]) -> None:
    """Name objects of which it is unknown what they were."""
    for one in objects[:_NAMED]:
        where = "/".join(filter(None, (one["cluster"], one["namespace"], one["name"])))
        print(f"warning: unknown then: {where}: {one['reason']}", file=sys.stderr)
    if len(objects) > _NAMED:
        print(f"warning: and {len(objects) - _NAMED} more or so", file=sys.stderr)
