"""Whether a rule names something that its cluster does not serve.

Such a rule is no error: the definition may come later, and rules apply to requests for unserved
types too. But most of them are misspelt, and would never have a hit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus_emulator.apiserver.close_names import closest_name
from fleetbus_emulator.apiserver.faults.rules import CORE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from fleetbus_emulator.apiserver.faults.rules import Match


def unserved_warning(match: Match, served: Mapping[tuple[str, str], Collection[str]]) -> str:
    """A warning about a rule that names something not served; empty if all is.

    Args:
        match: Which requests the rule is about.
        served: The subresources of each type, by group and plural.
    """
    groups = {group or CORE for group, _ in served}
    if match.group is not None and match.group not in groups:
        return f"no group {match.group} is served{_suggestion(match.group, groups)}"
    if match.resource is None:
        return ""
    named, _, subresource = match.resource.partition("/")
    in_group = {key: subs for key, subs in served.items() if match.group in (None, key[0] or CORE)}
    matches = [subs for key, subs in in_group.items() if named in (key[1], ".".join(key[::-1]))]
    if not matches:
        where = "" if match.group is None else f" in the group {match.group}"
        suggestion = _suggestion(named, (key[1] for key in in_group))
        return f"no resource {named} is served{where}{suggestion}"
    subresource_name = subresource or match.subresource
    if subresource_name and not any(subresource_name in subresources for subresources in matches):
        names = {name for subresources in matches for name in subresources}
        return (
            f"{named} has no subresource {subresource_name}{_suggestion(subresource_name, names)}"
        )
    return ""


def _suggestion(named: str, names: Iterable[str]) -> str:
    close = closest_name(named.lower(), names)
    return f"; did you mean {close}?" if close else ""
