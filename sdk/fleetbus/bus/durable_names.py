"""Names of the durables that no controller may have."""

from __future__ import annotations

from typing import Final

PROJECTOR: Final = "projector"
ARCHIVER: Final = "archiver"
RESERVED_NAMES: Final = frozenset({PROJECTOR, ARCHIVER})
