"""Changes of objects that the watcher has shown in part.

It leaves fields out and puts marks for what is secret, so what the snapshot shows is less than
there is. Written back as a whole it would take the rest away; so only what differs is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import orjson

from fleetbus.errors import IncompleteObject
from fleetbus.kube.merge_patch import Object, smallest_patch
from fleetbus.process.redact import MARK, MARK_OF_BYTES

_MARKS: Final = (f'"{MARK}"'.encode(), f'"{MARK_OF_BYTES}"'.encode())
_OF_THE_SERVER: Final = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)
"""What a server keeps, or fills in, when an update does not say it."""
_MISSING: Final = object()


def change_of(shown: Object, wanted: Object) -> Object:
    """The merge patch from an object as the snapshot shows it to what it is to be.

    Args:
        shown: the object.
        wanted: the whole of it, as for an update.
    """
    before: Object = shown["metadata"]
    after: Object = dict(wanted["metadata"])
    after |= {key: before[key] for key in _OF_THE_SERVER if key in before and key not in after}
    # One annotation is never shown; whoever takes all others away does not mean that one.
    after["annotations"] = after.get("annotations") or {}
    visible: Object = {**before, "annotations": before.get("annotations") or {}}
    return smallest_patch({**shown, "metadata": visible}, {**wanted, "metadata": after})


def lists_in(patch: Object, shown: Object) -> list[tuple[str, ...]]:
    """The paths of lists that a merge patch replaces; their items may have more than is shown."""
    return list(_lists(patch, shown, ()))


def require_same(paths: Sequence[tuple[str, ...]], shown: Object, whole: Object) -> None:
    """Check that nothing was left out at any of the paths.

    Raises:
        IncompleteObject: something was; the message names the path.
    """
    for path in paths:
        if _at(shown, path) != _at(whole, path):
            raise IncompleteObject(
                f"items of {'.'.join(path)} have fields that the snapshot does not show, and the"
                " update would lose them: read the object with `live`, or use `patch` or `apply`"
            )


def refuse_marks(body: Object | Sequence[Object]) -> None:
    """Check that what is to be written has no mark of the watcher in place of a value.

    Raises:
        IncompleteObject: it has.
    """
    sent = orjson.dumps(body)
    if any(mark in sent for mark in _MARKS):
        raise IncompleteObject(
            f"what is to be written has {MARK!r} in place of a value that the snapshot does not"
            " show: read the object with `live`"
        )


def _lists(patch: Object, shown: Object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in patch.items():
        old = shown.get(key)
        if isinstance(old, list) and value is not None:
            yield (*path, key)
        elif isinstance(old, dict) and isinstance(value, dict):
            yield from _lists(cast("Object", value), cast("Object", old), (*path, key))


def _at(tree: Any, path: Sequence[str]) -> Any:
    for key in path:
        tree = cast("Object", tree).get(key, _MISSING) if isinstance(tree, dict) else _MISSING
    return tree
