"""Finds the field whose value an API server cannot read, where its refusal does not name it.

Server-side apply checks fields against a schema that knows neither quantities, times nor the
encoding of bytes, and takes 1.5 for an integer. The conversion that follows refuses such a value,
as `quantities must match the regular expression`, without its field. Dry runs with fewer and fewer
fields do find it: each tells whether the wrong one is among those that are left.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

from fleetbus.errors import KubeError
from fleetbus.owned_objects.refusal import is_inconvertible
from fleetbus.ownership import set_owner
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.target import Target

_Path: TypeAlias = tuple[str | int, ...]

_KEPT: Final = frozenset({"apiVersion", "kind", "metadata"})
_MOST: Final = 4096
"""Fields among which one is looked for, with a dry run for each power of two."""


async def find_wrong_value(target: Target, template: Object, ref: ObjectRef) -> str:
    """The path of the field that the cluster cannot read; empty if dry runs cannot find it.

    The answer is remembered: an author who does not correct it gets the same again every minute.
    """
    if (known := target.memory.wrong_values.get(target.name, template)) is not None:
        return known
    field = ""
    try:
        field = await _find(target, template, ref)
    except KubeError:
        return ""  # the refusal counts, this only explains it
    target.memory.wrong_values.note(target.name, template, field)
    return field


async def _find(target: Target, template: Object, ref: ObjectRef) -> str:
    api = await target.client.discover(ref.api_version, ref.kind)
    paths = list(_removable({k: v for k, v in template.items() if k not in _KEPT}, ()))
    if api is None or len(paths) > _MOST:
        return ""

    async def is_refused(count: int) -> bool:
        """Whether the first fields alone are refused for the same reason."""
        part = set_owner(_without(template, paths[count:]), target.owner)
        if not api.namespaced:
            part["metadata"].pop("namespace", None)
        try:
            await target.client.apply(
                api.resource, part, field_manager=target.manager, force=True, dry_run=True
            )
        except KubeError as error:
            return is_inconvertible(error)
        return False

    if not await is_refused(len(paths)) or await is_refused(0):
        return ""  # corrected meanwhile, or in a field that cannot be left out
    sound, wrong = 0, len(paths)
    while wrong - sound > 1:
        middle = (sound + wrong) // 2
        if await is_refused(middle):
            wrong = middle
        else:
            sound = middle
    return _shown(paths[wrong - 1])


def _removable(tree: Any, path: _Path, *, is_item: bool = False) -> Iterator[_Path]:
    """The fields and items that may be left out, an item before its own fields.

    No direct member of an item is among them: it may be its key.
    """
    if isinstance(tree, dict):
        for name, value in cast("dict[str, Any]", tree).items():
            if isinstance(value, dict | list):
                yield from _removable(value, (*path, name))
            elif not is_item:
                yield (*path, name)
    elif isinstance(tree, list):
        for at, value in enumerate(cast("list[Any]", tree)):
            yield (*path, at)
            yield from _removable(value, (*path, at), is_item=True)


def _without(template: Mapping[str, Any], paths: list[_Path]) -> Object:
    """A copy without some fields and items; the last go first, so that indices stay right."""
    part = copy.deepcopy(dict(template))
    for path in reversed(paths):
        parent: Any = part
        for step in path[:-1]:
            parent = parent[step]
        del parent[path[-1]]
    return part


def _shown(path: _Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
