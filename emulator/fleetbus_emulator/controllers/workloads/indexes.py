"""Sets of completion indexes as an Indexed Job's status writes them: `1,3-5,7`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

INDEX = "batch.kubernetes.io/job-completion-index"


def parse_indexes(text: str, below: int) -> set[int]:
    """Parse indexes below a limit; invalid parts are left out."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), min(int(last or first), below - 1) + 1))
    return found


def show_indexes(indexes: Iterable[int]) -> str:
    """Format a set of indexes."""
    return ",".join(_show(first, last) for first, last in _runs(sorted(indexes)))


def _show(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"


def _runs(ordered: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for place, value in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != value + 1:
            yield ordered[start], value
            start = place + 1
