"""Encodes the headers of a message as one block, to speed up nats-py (rule B10).

nats-py cleans the value of each header, 2 us each and half the cost of a publish; ours are clean.
So all headers are packed into the value of the first one, and nats-py encodes one value, not ten.
"""

from __future__ import annotations


class _HeaderBlock(str):
    """A header value that nats-py does not clean."""

    __slots__ = ()

    def strip(self, chars: str | None = None, /) -> str:
        """Return itself: it has no surrounding spaces."""
        del chars
        return self

    def translate(self, table: object, /) -> str:
        """Return itself: its line ends separate headers."""
        del table
        return self


def to_block(headers: dict[str, str]) -> dict[str, str]:
    """Pack headers into one for nats-py: the first name, with everything else in its value.

    Raises:
        ValueError: one is not plain ASCII.
    """
    (first, value), *others = headers.items()
    text = "\r\n".join([value, *[f"{name}: {text}" for name, text in others]])
    if not text.isascii() or text.count("\n") != len(others) or text.count("\r") != len(others):
        raise ValueError(f"headers are not plain ASCII: {headers!r}")
    return {first: _HeaderBlock(text)}


def prepend(headers: dict[str, str], block: dict[str, str]) -> dict[str, str]:
    """Put more headers in front of a block."""
    ((name, value),) = block.items()
    (first, text), *others = headers.items()
    lines = [text, *[f"{more}: {value}" for more, value in others], f"{name}: {value}"]
    return {first: _HeaderBlock("\r\n".join(lines))}
