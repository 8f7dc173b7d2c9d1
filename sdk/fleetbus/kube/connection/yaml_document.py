"""Parse YAML that somebody else wrote, with bounds on what it may cost.

Depth is counted first, because the C parser overflows the stack of the process; aliases are refused
unless the author is trusted, because a few hundred bytes of them stand for gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import yaml

MAX_DEPTH: Final = 64
# libyaml where PyYAML was built with it: ten times as fast.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Start = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_End = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def parse_yaml(text: str, *, aliases: bool = False) -> object:
    """The tree that a YAML or JSON text describes.

    Args:
        text: the document.
        aliases: whether it may have aliases.

    Raises:
        ValueError: it is not valid or not allowed; the message quotes nothing of the text, which
            may hold secrets.
    """
    try:
        _check_events(text, aliases=aliases)
        return cast("object", yaml.load(text, Loader=_LOADER))  # noqa: S506 -- a safe loader
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise ValueError(f"not valid YAML{line}") from None  # the cause quotes the text
    except _Refused as e:
        raise ValueError(str(e)) from None
    except (ValueError, TypeError, RecursionError) as e:  # a date that is none, a map as a key
        raise ValueError(f"not valid YAML: {type(e).__name__}") from None


class _Refused(Exception):
    """Valid YAML that is not accepted."""


def _check_events(text: str, *, aliases: bool) -> None:
    depth = 0
    for event in cast("Iterator[Any]", yaml.parse(text, Loader=_LOADER)):
        if isinstance(event, yaml.AliasEvent) and not aliases:
            raise _Refused(f"YAML aliases are not allowed (line {event.start_mark.line + 1})")
        if isinstance(event, _Start):
            depth += 1
        elif isinstance(event, _End):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _Refused(f"not valid YAML: nested more than {MAX_DEPTH} deep")
