"""The release that runs: its version, its commit, and whether its parts belong together."""

from __future__ import annotations

from functools import cache
from importlib import metadata, resources
from typing import Final, NamedTuple

from fleetbus.errors import ConfigError

COMMAND_LINE: Final = "fleetbus"
PARTS: Final = (
    "fleetbus-proto",
    "fleetbus-sdk",
    COMMAND_LINE,
    "fleetbus-watcher",
    "fleetbus-reconciler",
    "fleetbus-distributor",
    "fleetbus-query-api",
    "fleetbus-archiver",
    "fleetbus-agent",
    "fleetbus-emulator",
    "fleetbus-devfleet",
)
"""The distributions of a release. Each asks for the others of its own version."""
_ITSELF: Final = "fleetbus-sdk"


class Release(NamedTuple):
    """One build."""

    version: str
    commit: str
    """The commit of the sources; empty in a clone, whose files may be newer than any commit."""

    def __str__(self) -> str:
        return f"{self.version} ({self.commit[:12] or 'from a clone'})"


@cache
def release() -> Release:
    """The release of this process."""
    # The build writes it, see hatch_build.py.
    built = resources.files("fleetbus") / "COMMIT"
    commit = built.read_text(encoding="utf-8").strip() if built.is_file() else ""
    return Release(metadata.version(_ITSELF), commit)


def check_parts() -> None:
    """Make sure that the installed parts are of one release.

    Raises:
        ConfigError: they are not, which pip does only with --no-deps.
    """
    found: dict[str, str] = {}
    for part in PARTS:
        try:
            found[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            continue
    if len(set(found.values())) > 1:
        parts = ", ".join(f"{name} {version}" for name, version in found.items())
        wanted = " ".join(f"{name}=={found[_ITSELF]}" for name in found)
        raise ConfigError(
            f"parts of different releases are installed: {parts}; to have one release:"
            f" pip install {wanted}"
        )
