"""Refuses stored state that a newer release has written in a format that this one does not know.

Each kind of stored state has a format, a number. Where nothing is said it is 1. A release that
begins another format leaves a mark beside the state, `<format> <release>`, like `2 0.3.0`: in the
generation of the snapshot, beside a controller's queue, in the metadata of a stream, in the status
of a MultiClusterResource. A release that goes back over that change would misread the state, or
drop what it does not know of it; with the mark it refuses, and changes nothing (rule P19).
"""

from __future__ import annotations

import re
from typing import Final

from fleetbus.process.release import release

METADATA: Final = "fleetbus-format"
"""The name of the mark in the metadata of a stream."""
_MARK: Final = re.compile(r"([0-9]{1,9})(?: ([-+.0-9A-Za-z]{1,40}))?")


def why_newer(what: str, mark: str, *, back: str, known: int = 1) -> str:
    """Why state must not be touched; empty if this release knows its format.

    Args:
        what: the state, as the beginning of a sentence.
        mark: `<format> <release>`; empty for format 1. Anything else is of a newer release, too.
        back: what to do to go on with this release all the same.
        known: the highest format that this release knows.
    """
    if not mark:
        return ""
    match = _MARK.fullmatch(mark)
    if match is not None and int(match[1]) <= known:
        return ""
    number, writer = match.groups(default="") if match is not None else (f"{mark!r:.40}", "")
    newer = f"a newer fleetbus, {writer}" if writer else "a newer fleetbus"
    return (
        f"{what} was written by {newer}: its format is {number}, and this release,"
        f" {release().version}, knows {known}. Nothing was changed. Run {writer or 'that release'}"
        f" again, or a later one; {back}"
    )
