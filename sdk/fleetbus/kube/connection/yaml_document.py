"""Parses untrusted YAML within bounds.

The depth is checked first, because the C parser overflows the stack of the process; aliases are
refused unless the author is trusted, because a few hundred bytes of them can expand to gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import yaml

MAX_DEPTH: Final = 64
# libyaml, if PyYAML was built with it, is ten times as fast.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Start = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_End = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def parse_yaml(text: str, *, aliases: bool = False) -> object:
    """Parse a YAML or JSON text.

    Args:
        text: the document.
        aliases: whether aliases are allowed.

    Raises:
        ValueError: it is invalid or not allowed; the message does not quote the text, which may
            contain secrets.
    """
    try:
        _check_events(text, aliases=aliases)
        return cast("object", yaml.load(text, Loader=_LOADER))  # noqa: S506 -- a safe loader
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise ValueError(f"invalid YAML{line}") from None  # the cause quotes the text
    except _Refused as e:
        raise ValueError(str(e)) from None
    except (ValueError, TypeError, RecursionError) as e:  # an invalid date, a map as a key
        raise ValueError(f"invalid YAML: {type(e).__name__}") from None


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
            raise _Refused(f"invalid YAML: nested more than {MAX_DEPTH} levels deep")
