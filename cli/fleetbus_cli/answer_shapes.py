"""The parts of the query API's answers that commands read; another server's JSON lacks them.

A shape is a type, or several; a list with the shape of its elements; or a dict with the shapes of
fields, of which those that end in `?` may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast


@dataclass(frozen=True, slots=True)
class Each:
    """A map with any names, whose values have a shape."""

    shape: Any


@dataclass(frozen=True, slots=True)
class Maybe:
    """A shape, or null."""

    shape: Any


@dataclass(frozen=True, slots=True)
class Some:
    """A list of one element or more."""

    shape: Any


@dataclass(frozen=True, slots=True)
class ByStage:
    """The shape that `stage` names, or else the other one."""

    shapes: Mapping[str, Any]
    other: Any


NUMBER: Final = (int, float)
RESOURCE: Final = {
    "group": str,
    "plural": str,
    "kind": str,
    "namespaced": bool,
    "versions": [str],
}
_FRESH: Final = {
    "freshness": Each({"state": str, "ageSeconds": Maybe(NUMBER), "reason": str}),
    "incomplete": [str],
}
_WINDOW: Final = {
    "from": str,
    "to": str,
    "gaps": [{"cluster": Maybe(str), "to": str, "reason": str}],
}
_CAUSE: Final = {"kind": str, "namespace": str, "name": str}
_DIFFERENCES: Final = {
    "differences": [{"path": str, "before": object, "after": object}],
    "moreDifferences": int,
}
_ITEM: Final = {"cluster": str, "object?": Maybe({"metadata?": Maybe(dict)})}
_UNDETERMINED: Final = [{"cluster": str, "namespace": str, "name": str, "reason": str}]
_CLUSTER: Final = {
    "name": str,
    "labels": dict,
    "hub": bool,
    "provider": str,
    "host": str,
    "access?": str,
    "agent?": Maybe({"connected": bool, "reason": str, "message": str, "answeredAt": str}),
    "serverVersion": str,
    "platform": str,
    "connected": bool,
    "reason": str,
    "message": str,
    "lastAnswer": str,
    "joinedAt": str,
    "resourceCount": int,
    "completeResourceCount": int,
}
_ENTRY: Final = ByStage(
    {
        "change": {
            "time": str,
            "verb": str,
            "resourceVersion": str,
            "storedAfterSeconds": Maybe(NUMBER),
            "foundByList": bool,
            **_DIFFERENCES,
        },
        "reconcile": {
            "time": str,
            "controller": str,
            "request": {"cluster": str, "namespace": str, "name": str},
            "outcome": str,
            "waitedSeconds": NUMBER,
            "ranSeconds": NUMBER,
            "error": str,
        },
    },
    {
        "time": str,
        "owner": _CAUSE,
        "event": str,
        "objects": [str],
        "reason": str,
        "message": str,
    },
)
_REPORT: Final = {
    "owner": {"namespace": str, "name": str},
    "event": str,
    "clusters": [str],
    "revision": int,
    "wave": str,
    "objects": [{"object": str, "field": str, "manager": str}],
    "moreObjects": int,
    "reason": str,
    "message": str,
    "last": str,
    "count": int,
}
SHAPES: Final[Mapping[str, Any]] = {
    "/fleet/v1/resources": {
        "items": [
            {**RESOURCE, "versions": Some(str), "shortNames": [str], "categories": [str]},
        ]
    },
    "/fleet/v1/resources/": {
        "items": [_ITEM],
        "resource": RESOURCE,
        "resourceVersion": str,
        "continue": str,
        "asOf?": str,
        "undetermined?": _UNDETERMINED,
        **_FRESH,
    },
    "/fleet/v1/clusters": {"items": [_CLUSTER], **_FRESH},
    "/fleet/v1/clusters/": {
        **_CLUSTER,
        "resources": [
            {
                "group": str,
                "version": str,
                "plural": str,
                "objects": Maybe(int),
                "state": str,
                "reason": str,
            }
        ],
        **_FRESH,
    },
    "/fleet/v1/history": {"window": _WINDOW},
    "/fleet/v1/deleted/": {
        "items": [
            {
                **_ITEM,
                "deletedAt": str,
                "foundByList": bool,
                "deletedBy": Maybe(_CAUSE),
                "existsAgain": bool,
            }
        ],
        "since": str,
        "remaining": int,
        "window": _WINDOW,
        "resource": RESOURCE,
        **_FRESH,
    },
    "/fleet/v1/timeline/": {
        "entries": [_ENTRY],
        "since": str,
        "hasMore": bool,
        "window": _WINDOW,
        **_FRESH,
    },
    "/fleet/v1/changes": {
        "from": str,
        "groups": [
            {
                "resource": RESOURCE,
                "namespace": str,
                "name": str,
                "change": str,
                "clusters": [str],
                "others": [str],
                "writtenBy?": Maybe(_CAUSE),
                **_DIFFERENCES,
            }
        ],
        "distribution?": Maybe([_REPORT]),
        "distributionCount?": int,
        "ownedObjects": int,
        "groupCount": int,
        "truncated": bool,
        "undetermined": _UNDETERMINED,
        "window": _WINDOW,
        **_FRESH,
    },
    "/v1/join": {"res": str},
    "/v1/unjoin": {"res": str},
}
"""By path; one that ends in `/` is the beginning of several."""
TABLE_HEAD: Final = {
    "columns": [{"name": str, "format": str, "priority": int}],
    "resource": RESOURCE,
    **_FRESH,
}
TABLE_END: Final = {
    "end": {"resourceVersion": str, "undecided?": Each(int), "undetermined?": _UNDETERMINED}
}
EVENT: Final = {"type": str, "object": dict}


_ABSENT: Final = object()
_CONTAINERS: Final[Mapping[type, type]] = {
    ByStage: dict,
    Maybe: object,
    Each: dict,
    dict: dict,
    Some: list,
    list: list,
}


def shape_of(path: str) -> Any:
    """The shape of the answer for a path; `object` if commands read nothing of it."""
    if path in SHAPES:
        return SHAPES[path]
    return next(
        (shape for begin, shape in SHAPES.items() if begin[-1] == "/" and path.startswith(begin)),
        object,
    )


def misfit(value: Any, shape: Any, path: str = "") -> str | None:
    """The path of the first part of an answer that has not its shape; None if all have."""
    container: Any = _CONTAINERS.get(shape.__class__, shape)
    if value is _ABSENT or not isinstance(value, container):
        return path
    if isinstance(shape, Some) and not value:
        return path
    if isinstance(shape, type | tuple):
        return None
    parts = (misfit(*part) for part in _parts(value, shape, path))
    return next((where for where in parts if where is not None), None)


def _parts(value: Any, shape: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    """The parts of a value, with the shape and the path of each."""
    match shape:
        case Maybe():
            if value is not None:
                yield value, shape.shape, path
        case ByStage():
            yield value.get("stage", _ABSENT), str, f"{path}.stage"
            yield value, shape.shapes.get(value["stage"], shape.other), path
        case Each():
            for name, part in value.items():
                yield part, shape.shape, f"{path}.{name}"
        case Some() | list():
            (inner,) = (shape.shape,) if isinstance(shape, Some) else cast("list[Any]", shape)
            for at, part in enumerate(value):
                yield part, inner, f"{path}[{at}]"
        case _:
            for field, part in shape.items():
                name = field.rstrip("?")
                if name == field or name in value:
                    yield value.get(name, _ABSENT), part, f"{path}.{name}"
