"""Text that clusters and events bring, for a terminal, which obeys control characters."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with `?` in place of each character that is not printed as itself."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)
