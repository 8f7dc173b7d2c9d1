"""The values of one field of many objects: each distinct one once, and a number for each object."""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

from fleetbus.kube.field_paths import Value

_CODE: Final = "I"
_CODE_BYTES: Final = 5
"""Bytes of a row: four, and room to grow."""
_OWN_BYTES: Final = 1_000
"""Bytes of a column without rows, so that queries of many missing fields count, too."""
_ENTRY_BYTES: Final = 120
"""Bytes of a distinct value, besides the value itself: its places in the table of codes and in
three lists."""


class Undecided:
    """In place of the value of an object whose body is missing or malformed."""

    def __repr__(self) -> str:
        return "UNDECIDED"


UNDECIDED: Final = Undecided()


class FieldColumn:
    """One field of the rows of a table, in their order.

    Args:
        rows: how many there are; until it is set, each is undecided.

    Attributes:
        codes: of each row.
        values: by code; those that no row has any more are None.
        is_read: whether every row was read once.
    """

    def __init__(self, rows: int) -> None:
        self.codes = array(_CODE, bytes(4 * rows))
        self.values: list[Value | Undecided] = [UNDECIDED]
        self._uses = [rows]
        self._known: dict[Any, int] = {UNDECIDED: 0}
        self._free: list[int] = []
        self._held = 0
        self.is_read = False

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return _OWN_BYTES + self._held + len(self.codes) * _CODE_BYTES

    @property
    def undecided(self) -> int:
        """Number of undecided rows."""
        return self._uses[0]

    def uses(self, code: int) -> int:
        """Number of rows with the value of this code."""
        return self._uses[code]

    def get(self, row: int) -> Value | Undecided:
        """The value of a row."""
        return self.values[self.codes[row]]

    def set(self, row: int, value: Value | Undecided) -> None:
        """Change the value of a row."""
        code = self._take(value)
        self._release(self.codes[row])
        self.codes[row] = code

    def insert(self, row: int, value: Value | Undecided) -> None:
        """Add a row before this one."""
        self.codes.insert(row, self._take(value))

    def remove(self, row: int) -> None:
        """Remove a row."""
        self._release(self.codes.pop(row))

    def _take(self, value: Value | Undecided) -> int:
        key = value if type(value) is str else _key(value)
        code = self._known.get(key)
        if code is None:
            code = self._add(key, value)
        self._uses[code] += 1
        return code

    def _add(self, key: Any, value: Value | Undecided) -> int:
        self._held += _bytes_of(value)
        if self._free:
            code = self._free.pop()
            self.values[code] = value
        else:
            code = len(self.values)
            self.values.append(value)
            self._uses.append(0)
        self._known[key] = code
        return code

    def _release(self, code: int) -> None:
        self._uses[code] -= 1
        if self._uses[code] or not code:
            return
        value = self.values[code]
        self._held -= _bytes_of(value)
        del self._known[_key(value)]
        self.values[code] = None
        self._free.append(code)


def _key(value: Value | Undecided) -> Any:
    """Equal for equal values of equal types only: 1, 1.0 and true are equal in Python."""
    if isinstance(value, (str, Undecided)):
        return value
    if isinstance(value, tuple):
        return (value, *map(type, value))
    return (type(value), value)


def _bytes_of(value: Value | Undecided) -> int:
    inside = sum(map(sys.getsizeof, value)) if isinstance(value, tuple) else 0
    return sys.getsizeof(value) + inside + _ENTRY_BYTES
