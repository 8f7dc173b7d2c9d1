"""Reads the YAML of manifests by way of JSON, with the same result as kubectl.

PyYAML alone would read a date as a date, 12:30 as a number, and `1e3`, `y` and `n` as strings; and
it keeps keys such as `yes` and `1` as they are, which JSON cannot have.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, cast

import yaml

_TAG: Final = "tag:yaml.org,2002:"
_REPLACED: Final = tuple(_TAG + kind for kind in ("timestamp", "bool", "int", "float", "value"))
_BOOL: Final = re.compile(
    r"(?:y|Y|yes|Yes|YES|on|On|ON|true|True|TRUE|n|N|no|No|NO|off|Off|OFF|false|False|FALSE)\Z"
)
_INT: Final = re.compile(
    r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o[0-7_]+|0[0-7_]*|[1-9][0-9_]*)\Z", re.ASCII
)
_FLOAT: Final = re.compile(
    r"(?:[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
    re.ASCII,
)
_INT64: Final = range(-(2**63), 2**64)
"""Range of the integers that JSON keeps exactly; others become floats."""


_SafeLoader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):
    """A safe loader with the scalars of Go's YAML, and strings as keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Make each key a string at once: of `1` and `yes` a dict would keep only one."""
        if not isinstance(node, yaml.MappingNode):
            return cast("object", super().construct_mapping(node, deep=deep))  # which refuses it
        self.flatten_mapping(node)
        pairs = cast("list[tuple[Any, Any]]", node.value)
        return {
            _key(self.construct_object(key, deep=True)): self.construct_object(value, deep=deep)
            for key, value in pairs
        }


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _kind_of(loader: Any, node: Any) -> str:
    """The kind of a scalar by its text alone, as Go checks it against the tag of an author."""
    if not isinstance(node, yaml.ScalarNode):
        return ""
    return str(loader.resolve(yaml.ScalarNode, node.value, (True, False))).removeprefix(_TAG)


def _check_kind(loader: Any, node: Any, *allowed: str) -> None:
    if _kind_of(loader, node) not in allowed:
        raise yaml.constructor.ConstructorError(problem_mark=node.start_mark)


def _construct_null(loader: Any, node: Any) -> None:
    _check_kind(loader, node, "null")


def _construct_bool(loader: Any, node: Any) -> bool:
    _check_kind(loader, node, "bool")
    return str(node.value).lower() in ("y", "yes", "on", "true")


def _construct_int(loader: Any, node: Any) -> int:
    _check_kind(loader, node, "int")
    return yaml.SafeLoader.construct_yaml_int(loader, node)


def _construct_float(loader: Any, node: Any) -> object:
    """A number; what is too large for one is a string, as for Go."""
    _check_kind(loader, node, "int", "float")
    if _kind_of(loader, node) == "int":
        return float(yaml.SafeLoader.construct_yaml_int(loader, node))
    number: float = yaml.SafeLoader.construct_yaml_float(loader, node)
    is_too_large = math.isinf(number) and node.value[-1:].isdigit()
    return str(node.value) if is_too_large else number


def _construct_binary(loader: Any, node: Any) -> str:
    try:
        return yaml.SafeLoader.construct_yaml_binary(loader, node).decode()
    except UnicodeDecodeError as e:
        raise ValueError("not a value of JSON: bytes that are no text") from e


def _construct_merge(_loader: Any, node: Any) -> str:
    return str(node.value)  # `<<` as a value; as a key it is gone by now


def _construct_text(_loader: Any, _suffix: str, node: Any) -> str:
    """The text of a scalar with a tag of its author's own, as Go reads it."""
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.constructor.ConstructorError(problem_mark=node.start_mark)
    return str(node.value)


for _tag, _pattern, _first in (
    ("bool", _BOOL, "yYnNtTfFoO"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
):
    _Loader.add_implicit_resolver(_TAG + _tag, _pattern, list(_first))
_Loader.add_constructor(_TAG + "null", _construct_null)
_Loader.add_constructor(_TAG + "bool", _construct_bool)
_Loader.add_constructor(_TAG + "int", _construct_int)
_Loader.add_constructor(_TAG + "float", _construct_float)
_Loader.add_constructor(_TAG + "binary", _construct_binary)
_Loader.add_constructor(_TAG + "merge", _construct_merge)
_Loader.add_multi_constructor("!", _construct_text)


def read_documents(text: str) -> list[object]:
    """Parse the documents of a manifest, without empty ones.

    Raises:
        ValueError: it is invalid, or cannot be written as JSON; the message quotes no value.
    """
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
        return [_as_json(document) for document in documents if document is not None]
    except yaml.YAMLError as e:
        raise ValueError(f"invalid YAML{_where(e, len(text.splitlines()))}") from e
    except RecursionError as e:
        raise ValueError("invalid YAML: nested too deeply, or in itself") from e


def _where(error: yaml.YAMLError, lines: int) -> str:
    """The place of an error and what is wrong there, as far as the parser says it.

    Args:
        error: of the parser, which counts one line more when a document ends too early.
        lines: of the text.
    """
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ""
    line = min(error.problem_mark.line + 1, lines)
    if not error.problem:
        return f" at line {line}"
    begin = error.context_mark
    begun = f" {error.context} that begins at line {min(begin.line + 1, lines)}" if begin else ""
    return f" at line {line}: {error.problem}{begun}"


def _as_json(value: Any) -> object:
    match value:
        case dict():
            return {key: _as_json(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_as_json(item) for item in cast("list[Any]", value)]
        case float() if not math.isfinite(value):
            raise ValueError("not a value of JSON: .inf or .nan")
        case float() if value.is_integer() and int(value) in _INT64:
            return int(value)
        case bool() | str() | float() | None:
            return value
        case int():
            return value if value in _INT64 else float(value)
        case _:
            raise ValueError(f"not a value of JSON: a YAML {type(value).__name__}")


def _key(key: object) -> str:
    """The key as a string: JSON has no other."""
    match key:
        case str():
            return key
        case bool():
            return "true" if key else "false"
        case int():
            return str(key)
        case float():
            return f"{key:g}"
        case _:
            raise ValueError(f"not a key of JSON: a YAML {type(key).__name__}")
