"""Finds objects of the same name that differ between clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, Final, cast

import msgspec

from fleetbus.errors import MalformedOwner
from fleetbus.kube.field_paths import FieldPath
from fleetbus.kube.selectors import FieldSelector
from fleetbus.ownership import Owner, owner_of
from fleetbus.snapshot import Entry, ListQuery, SnapshotReader
from fleetbus.snapshot.reads.entries import make_entry
from fleetbus_query_api.catalog.catalog import read_generation
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.fields.matching import (
    STEP,
    Matches,
    Segment,
    find_matches,
    value_reader,
)
from fleetbus_query_api.fields.source import FieldSource, Question
from fleetbus_query_api.fields.tables import CHUNK_BYTES
from fleetbus_query_api.fields.tree_size import compared_levels
from fleetbus_query_api.fields.variants import digest_form, encode_form, reduce_tree, variant_of
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.requests.paging import (
    FieldPosition,
    digest_question,
    read_token,
)
from fleetbus_query_api.responses.problem import BadRequestProblem
from fleetbus_query_api.responses.render import body_of

_MAX_NAMES: Final = 300_000
"""That are compared; one takes 100 bytes meanwhile."""
_MAX_VARIANTS: Final = 5
"""Variants of a name whose differences are shown."""
MAX_DIFFERENCES: Final = 50
PAGE_BYTES: Final = 16 * 1024 * 1024
"""Variants of one page whose differences are shown, as JSON: as large as a page of a list."""
_SHOWN: Final = 200
"""Characters of a value, and of a name in a path."""
_LONGEST_PATH: Final = 1_000
_DEEPEST: Final = 200


@dataclass(slots=True)
class Outlier:
    """One name whose objects differ.

    Attributes:
        key: namespace and name, as in the snapshot.
        clusters: by digest of the variant.
        forms: JSON of some variants, by digest.
        owners: that the marks of the objects name, whatever cluster the objects are in.
    """

    key: bytes
    clusters: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    forms: dict[str, bytes] = field(default_factory=dict[str, bytes])
    owners: set[Owner | None] = field(default_factory=set["Owner | None"])

    @property
    def owner(self) -> Owner | None:
        """The owner in another cluster that all of the objects have; None if they differ in it."""
        return next(iter(self.owners)) if len(self.owners) == 1 else None

    def differences(self) -> list[dict[str, Any]]:
        """The fields that differ between the variants, and the value in each."""
        trees = {digest: msgspec.json.decode(form) for digest, form in self.forms.items()}
        levels = compared_levels(*trees.values(), deepest=_DEEPEST)
        pairs = islice(_differences(trees, "", levels), MAX_DIFFERENCES)
        return [{"path": _cut(path, _LONGEST_PATH), "values": values} for path, values in pairs]


@dataclass(slots=True)
class FormBudget:
    """The bytes that the forms of one page may take.

    Attributes:
        left: bytes.
        exceeded: how many objects per cluster have a variant for which there was no room.
    """

    left: int
    exceeded: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, cluster: str, size: int) -> bool:
        """Whether there is room for the form of an object."""
        if size > self.left:
            self.exceeded[cluster] = self.exceeded.get(cluster, 0) + 1
            return False
        self.left -= size
        return True


@dataclass(frozen=True, slots=True)
class Outliers:
    """One page of outliers, and how many there are in all.

    Attributes:
        undecided: how many objects per cluster could not be compared.
        undescribed: how many differ in ways for which the page has no room.
    """

    version: int
    items: Sequence[Outlier]
    remaining: int
    continue_token: str
    undecided: Mapping[str, int]
    undescribed: Mapping[str, int]


class FieldOutliers:
    """Compares the objects of clusters.

    Args:
        reader: the snapshot.
        source: has the variants.
        slices: run the comparisons.
    """

    def __init__(self, *, reader: SnapshotReader, source: FieldSource, slices: TimeSlices) -> None:
        self._reader = reader
        self._source = source
        self._slices = slices

    async def find(self, query: ListQuery, fields: FieldSelector) -> Outliers:
        """Find one page of names whose objects differ, by namespace and name.

        Raises:
            BadRequestProblem: there are too many names.
            InvalidToken: the continue token is malformed, or was issued for a different query.
            ExpiredToken: the continue token is of a lost store.
            StoreError: the store was emptied.
            redis.exceptions.RedisError: the store does not answer.
        """
        variant = variant_of(query.resource)
        question = Question(query, fields, [variant])
        generation, version, is_kept = await asyncio.gather(
            read_generation(self._reader),
            self._source.tables.catch_up(),
            self._source.is_kept(question),
        )
        requirements = (
            f"{requirement.path} {requirement.is_equal} {requirement.values}"
            for requirement in fields.requirements
        )
        mark = digest_question(
            "outliers",
            query.resource,
            repr((query.namespace, query.name)),
            str(query.labels or ""),
            *requirements,
        )
        after = b""
        if query.continue_token:
            position = read_token(query.continue_token, generation, version, mark)
            version, after = position.version, position.key
        names = _Names(variant, self._slices)
        async with aclosing(self._source.segments(question, is_kept=is_kept)) as segments:
            async for segment in segments:
                matches = await find_matches(segment, query.name, self._slices)
                await names.take(segment, matches)
        page, total = await names.first_after(after, query.limit or STEP)
        budget = FormBudget(PAGE_BYTES)
        outliers = await self._describe(query, page, budget)
        token = ""
        if total > len(page):
            token = FieldPosition(generation, version, mark, [], "", page[-1]).to_token()
        remaining = total - len(page)
        return Outliers(version, outliers, remaining, token, names.undecided, budget.exceeded)

    async def _describe(
        self, query: ListQuery, keys: Sequence[bytes], budget: FormBudget
    ) -> list[Outlier]:
        """Read the objects of these names, cluster by cluster; few are held at a time."""
        outliers = {key: Outlier(key) for key in keys}
        for cluster in sorted(query.clusters):
            remaining = list(keys)
            while remaining:
                rows = await self._reader.rows.read(
                    cluster, query.resource, remaining, most_bytes=CHUNK_BYTES
                )
                entries = [
                    (row.key, make_entry(cluster, row.key, row.guard, row.body))
                    for row in rows
                    if row.guard is not None and row.is_live
                ]

                def add(pair: tuple[bytes, Entry]) -> None:
                    add_object(outliers[pair[0]], query.resource, pair[1], budget)

                await self._slices.run(add, entries)
                remaining = remaining[len(rows) :]
        # Those that have become equal meanwhile are none.
        return [outlier for outlier in outliers.values() if len(outlier.clusters) > 1]


class _Names:
    """Which names have objects that differ.

    Args:
        variant: the column of variants.
        slices: run the work.

    Attributes:
        differing: their keys.
        undecided: how many objects per cluster cannot be compared.
    """

    def __init__(self, variant: FieldPath, slices: TimeSlices) -> None:
        self._variant = variant
        self._slices = slices
        self._first: dict[bytes, str] = {}
        self.differing: set[bytes] = set()
        self.undecided: dict[str, int] = {}

    async def take(self, segment: Segment, matches: Matches) -> None:
        """Take the rows of a segment that match."""
        read, keys, unknown = value_reader(segment, self._variant), segment.keys, 0

        def step(start: int) -> None:
            nonlocal unknown
            for row in matches.rows[start : start + STEP // 2]:
                variant = read(row)
                if not isinstance(variant, str):
                    unknown += 1
                elif self._first.setdefault(keys[row], variant) != variant:
                    self.differing.add(keys[row])

        await self._slices.run(step, range(0, len(matches.rows), STEP // 2))
        if len(self._first) > _MAX_NAMES:
            raise BadRequestProblem(
                f"more than {_MAX_NAMES:,} names: name a namespace, or select by labels"
            )
        if unknown := unknown + matches.undecided:
            count = self.undecided.get(segment.cluster, 0)
            self.undecided[segment.cluster] = count + unknown

    async def first_after(self, key: bytes, limit: int) -> tuple[list[bytes], int]:
        """The first names that differ after a key, and how many there are after it."""
        names, first, total = list(self.differing), list[bytes](), 0

        def step(start: int) -> None:
            nonlocal first, total
            later = [name for name in names[start : start + STEP] if name > key]
            total += len(later)
            first = sorted(first + later)[:limit]

        await self._slices.run(step, range(0, len(names), STEP))
        return first, total


def add_object(outlier: Outlier, resource: str, entry: Entry, budget: FormBudget) -> None:
    """Add an object to the variants of its name; one that cannot be read is left out."""
    try:
        tree = decode(body_of(entry))
        owner = _owner(tree)
        form = encode_form(reduce_tree(resource, tree))
    except UnreadableBody:
        return
    outlier.owners.add(owner)
    digest = digest_form(form)
    outlier.clusters.setdefault(digest, []).append(entry.cluster)
    if digest in outlier.forms or len(outlier.forms) >= _MAX_VARIANTS:
        return
    if budget.take(entry.cluster, len(form)):
        outlier.forms[digest] = form


def _owner(tree: Any) -> Owner | None:
    """The owner that a mark names, without the cluster that the object itself is in."""
    if not isinstance(tree, dict):
        return None
    try:
        owner = owner_of(cast("dict[str, Any]", tree))
    except MalformedOwner:
        return None
    return owner and owner.on("", "")


def _differences(
    forms: Mapping[str, Any], path: str, levels: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The places where trees differ, outermost first, as paths."""
    trees = list(forms.values())
    if _are_equal(trees):
        return
    if levels and all(isinstance(tree, dict) for tree in trees):
        names = {name: None for tree in trees for name in cast("dict[str, Any]", tree)}
        for name in sorted(names):
            parts = [cast("dict[str, Any]", tree).get(name) for tree in trees]
            if not _are_equal(parts):
                shown = _cut(name, _SHOWN)
                below = f"{path}.{shown}" if _is_plain(name) else f"{path}['{shown}']"
                by_digest = dict(zip(forms, parts, strict=True))
                yield from _differences(by_digest, below.removeprefix("."), levels - 1)
    elif levels and all(isinstance(tree, list) for tree in trees):
        for at, parts in enumerate(zip_longest(*cast("list[list[Any]]", trees))):
            if not _are_equal(parts):
                by_digest = dict(zip(forms, parts, strict=True))
                yield from _differences(by_digest, f"{path}[{at}]", levels - 1)
    else:
        yield path, {digest: _shown(tree) for digest, tree in forms.items()}


def _are_equal(values: Sequence[Any]) -> bool:
    """Whether values are equal: asked before a call for each of 50,000 equal elements."""
    return not values or values.count(values[0]) == len(values)


def _shown(value: Any) -> str | int | float | bool | None:
    """A value as JSON has it; the beginning of a long one."""
    if isinstance(value, dict | list):
        value = msgspec.json.encode(value).decode()
    return value[:_SHOWN] if isinstance(value, str) else value


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _is_plain(name: str) -> bool:
    return "." not in name and "/" not in name
