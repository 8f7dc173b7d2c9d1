"""Limits the work of rendering while it is done, not the result alone (rule D15).

A patch may copy what an earlier one has copied, and a later one may remove it all: a spec of 2 kB
then takes gigabytes on the way to a small object. So everything that templates, variables and
patches make counts, also what is removed again, and so does every step that makes nothing.
"""

from __future__ import annotations

from typing import Any, Final, cast

from fleetbus_distributor.errors import RenderError

MAX_BYTES: Final = 1024 * 1024
"""The finished objects of one cluster, as JSON."""
MAX_WORK: Final = 4 * 1024 * 1024
"""Everything that is made for one cluster, about as JSON."""
MAX_FLEET_WORK: Final = 256 * 1024 * 1024
"""Everything that is made for all clusters of one MultiClusterResource."""
MAX_DEPTH: Final = 100
_SCALAR: Final = 8
_CONTAINER: Final = 32
"""An empty map is 2 bytes of JSON, and 64 bytes of memory."""
_ACTION: Final = 64
_MOVED_ITEMS: Final = 16
"""So many items of a list are moved for the price of a byte."""


class Work:
    """The work of rendering for one cluster.

    Attributes:
        spent: bytes so far.
    """

    def __init__(self) -> None:
        self.spent = 0

    def spend(self, size: int) -> None:
        """Count some bytes.

        Raises:
            RenderError: it is too much.
        """
        self.spent += size
        if self.spent > MAX_WORK:
            raise RenderError(
                f"the objects rendered for this cluster are larger than {MAX_WORK} bytes, including"
                " content that patches add, copy and remove again"
            )

    def spend_text(self, text: str) -> None:
        """Count a string."""
        self.spend(_SCALAR + len(text))

    def spend_scalar(self) -> None:
        """Count a number, a boolean or null."""
        self.spend(_SCALAR)

    def spend_container(self) -> None:
        """Count a map or a list, without what is in it."""
        self.spend(_CONTAINER)

    def spend_action(self, pointer: str, parent: Any) -> None:
        """Count one action of a JSON patch on a member or item of a value."""
        moved = len(cast("list[Any]", parent)) if isinstance(parent, list) else 0
        self.spend(_ACTION + len(pointer) + moved // _MOVED_ITEMS)

    def spend_value(self, value: Any, what: str) -> None:
        """Count a JSON value before it is copied or compared.

        Args:
            value: may be nested deeper than the stack: this does not recurse.
            what: names it in messages.

        Raises:
            RenderError: it is too much, or nested too deep.
        """
        pending = [(value, 0)]
        while pending:
            item, depth = pending.pop()
            if depth > MAX_DEPTH:
                raise RenderError(f"{what}: nested deeper than {MAX_DEPTH}")
            if isinstance(item, str):
                self.spend_text(item)
            elif isinstance(item, dict):
                members = cast("dict[str, Any]", item)
                self.spend(_CONTAINER + sum(map(len, members)))
                pending += [(member, depth + 1) for member in members.values()]
            elif isinstance(item, list):
                self.spend_container()
                pending += [(member, depth + 1) for member in cast("list[Any]", item)]
            else:
                self.spend_scalar()
