"""The names of emulated clusters: which are valid, and those of a fleet of a given size."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HUB = "hub"
REGIONS = ("eu", "us", "ap")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_names(names: Sequence[str]) -> None:
    """Refuse names that cannot be those of the clusters of one fleet.

    Raises:
        ValueError: one is not a DNS label or is listed twice, or there is none.
    """
    if not names:
        raise ValueError("a fleet needs at least one cluster")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"cluster name {name!r} is not a DNS label (a-z, 0-9, -)")
        if names.count(name) > 1:
            raise ValueError(f"cluster name {name!r} is listed twice")


def default_names(count: int) -> list[str]:
    """A hub and `count - 1` members named after regions: hub, eu1, us1, ap1, eu2, ...

    Raises:
        ValueError: the count is below 1.
    """
    if count < 1:
        raise ValueError(f"clusters={count}: a fleet needs at least one cluster, its hub")
    return list(itertools.islice(_names(), count))


def _names() -> Iterator[str]:
    yield HUB
    for number in itertools.count(1):
        for region in REGIONS:
            yield f"{region}{number}"
