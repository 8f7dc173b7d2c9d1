"""The variable by which a shell asks for completions; reading it loads nothing else."""

from typing import Final

COMPLETE: Final = "_FLEETBUS_COMPLETE"
