"""Changes to objects of which the snapshot has only a part.

The watcher drops fields and replaces secret values by marks. Written back as a whole, such an
object would lose the rest; so only the differences are written.
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
"""Fields that a server keeps or fills in when an update omits them."""
_MISSING: Final = object()


def change_of(cached: Object, desired: Object) -> Object:
    """The merge patch from an object as the snapshot shows it to the wanted one.

    Args:
        cached: the object.
        desired: the whole object, as for an update.
    """
    before: Object = cached["metadata"]
    after: Object = dict(desired["metadata"])
    after |= {key: before[key] for key in _OF_THE_SERVER if key in before and key not in after}
    # The watcher drops one annotation; removing all that are shown must not remove that one.
    after["annotations"] = after.get("annotations") or {}
    visible: Object = {**before, "annotations": before.get("annotations") or {}}
    return smallest_patch({**cached, "metadata": visible}, {**desired, "metadata": after})


def lists_in(patch: Object, cached: Object) -> list[tuple[str, ...]]:
    """The paths of lists that a merge patch replaces; their items may have fields not shown."""
    return list(_lists(patch, cached, ()))


def require_same(paths: Sequence[tuple[str, ...]], cached: Object, live: Object) -> None:
    """Check that no field is missing at any of the paths.

    Raises:
        IncompleteObject: one is; the message names the path.
    """
    for path in paths:
        if _at(cached, path) != _at(live, path):
            raise IncompleteObject(
                f"items of {'.'.join(path)} have fields that the snapshot does not show, and the"
                " update would lose them: read the object with `live`, or use `patch` or `apply`"
            )


def refuse_marks(body: Object | Sequence[Object]) -> None:
    """Check that a body has no mark of the watcher in place of a value.

    Raises:
        IncompleteObject: it has one.
    """
    sent = orjson.dumps(body)
    if any(mark in sent for mark in _MARKS):
        raise IncompleteObject(
            f"what is to be written has {MARK!r} in place of a value that the snapshot does not"
            " show: read the object with `live`"
        )


def _lists(patch: Object, cached: Object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in patch.items():
        old = cached.get(key)
        if isinstance(old, list) and value is not None:
            yield (*path, key)
        elif isinstance(old, dict) and isinstance(value, dict):
            yield from _lists(cast("Object", value), cast("Object", old), (*path, key))


def _at(tree: Any, path: Sequence[str]) -> Any:
    for key in path:
        tree = cast("Object", tree).get(key, _MISSING) if isinstance(tree, dict) else _MISSING
    return tree
