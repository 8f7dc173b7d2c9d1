"""Randomness from a seed, a stream for each purpose.

Separate streams, so that a client who watches again, or a rule with a probability, does not change
what the next object is named.
"""

from __future__ import annotations

from random import Random


def stream(seed: int | None, purpose: str) -> Random:
    """The stream of a purpose; without a seed it cannot be repeated."""
    return Random(None if seed is None else f"{purpose}/{seed}")  # noqa: S311 - no secrets
