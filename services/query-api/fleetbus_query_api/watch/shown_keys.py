"""The objects of a resource that its watches have shown: a bit for each selector (rule A8).

Watches with selectors of their own cost a bit per object, not a copy of its name.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

from fleetbus_query_api.limits.time_slices import TimeSlices

MAX_KEYS: Final = 1_000_000
"""Objects of all resources; about 250 bytes each. A selector that finds no more room is not read:
every change of an object then counts as one of an object that may have been shown."""

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""


class KeyCount:
    """Number of keys of all resources."""

    def __init__(self) -> None:
        self.keys = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for more."""
        return self.keys >= MAX_KEYS


class ShownKeys:
    """The keys of one resource, by cluster, with the selectors that they match.

    Args:
        count: of the process.
        slices: run what takes long.
    """

    def __init__(self, count: KeyCount, slices: TimeSlices) -> None:
        self.count = count
        self._slices = slices
        self._masks: dict[str, dict[Key, int]] = {}
        self._used = 0
        # Bits of those who are gone, by cluster; they are cleared before a bit is read again.
        self._stale: dict[str, int] = {}
        self._clearing = asyncio.Lock()

    def allot(self) -> int:
        """Take a bit that no selector has."""
        bit = (self._used + 1) & ~self._used
        self._used |= bit
        return bit

    def release(self, bit: int) -> None:
        """Give a bit back, which was retired in every cluster."""
        self._used &= ~bit
        if not self._used:
            self.clear()

    def has(self, cluster: str, key: Key, bit: int) -> bool:
        """Whether a selector matches an object."""
        return bool(self._masks.get(cluster, {}).get(key, 0) & bit)

    def set(self, cluster: str, key: Key, bit: int, *, is_match: bool) -> None:
        """Note whether a selector matches an object."""
        masks = self._masks.setdefault(cluster, {})
        before = masks.get(key, 0)
        self._put(masks, key, before, before | bit if is_match else before & ~bit)

    def retire(self, cluster: str, bit: int) -> None:
        """Take that what is known of a selector in a cluster means nothing any more."""
        if cluster in self._masks:
            self._stale[cluster] = self._stale.get(cluster, 0) | bit

    async def prepare(self, cluster: str) -> None:
        """Clear the bits of those who are gone, before one of them is used again."""
        async with self._clearing:
            stale, masks = self._stale.pop(cluster, 0), self._masks.get(cluster, {})

            def clear(key: Key) -> bool:
                if self._masks.get(cluster) is not masks:
                    return True  # all of it was forgotten meanwhile
                before = masks.get(key, 0)
                self._put(masks, key, before, before & ~stale)
                return False

            if stale:
                await self._slices.run(clear, list(masks))

    def clear(self) -> None:
        """Forget everything."""
        for cluster in list(self._masks):
            self.drop(cluster)

    def drop(self, cluster: str) -> None:
        """Forget a cluster that is gone."""
        self.count.keys -= len(self._masks.pop(cluster, {}))
        self._stale.pop(cluster, None)

    def _put(self, masks: dict[Key, int], key: Key, before: int, mask: int) -> None:
        if mask:
            masks[key] = mask
            self.count.keys += not before
        elif before:
            del masks[key]
            self.count.keys -= 1
