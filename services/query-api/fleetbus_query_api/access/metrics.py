"""Metrics of the reviews that decide who may read what."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from prometheus_client import Counter, Histogram

TOKEN: Final = "token"  # noqa: S105 -- a kind of review
ACCESS: Final = "access"
ALLOWED: Final = "allowed"
DENIED: Final = "denied"
FAILED: Final = "failed"

REVIEWS: Final = Counter(
    "fleetbus_query_api_reviews_total",
    "Reviews that API servers were asked for, by kind (token, access) and result (allowed, denied,"
    " failed).",
    ["kind", "result"],
)
KNOWN: Final = Counter(
    "fleetbus_query_api_reviews_known_total",
    "Decisions that were known from an earlier review, by kind.",
    ["kind"],
)
REVIEW_SECONDS: Final = Histogram(
    "fleetbus_query_api_review_seconds", "Duration of a review, by kind.", ["kind"]
)
for _kind in (TOKEN, ACCESS):
    KNOWN.labels(_kind)
    REVIEW_SECONDS.labels(_kind)
    for _result in (ALLOWED, DENIED, FAILED):
        REVIEWS.labels(_kind, _result)


class Review:
    """One review while it is made.

    Attributes:
        is_allowed: set by the caller once it is decided.
    """

    is_allowed = False


@contextmanager
def measured(kind: str) -> Generator[Review]:
    """Count and time a review; an exception counts as a failure."""
    review, started = Review(), time.perf_counter()
    try:
        yield review
    except BaseException:
        REVIEWS.labels(kind, FAILED).inc()
        raise
    finally:
        REVIEW_SECONDS.labels(kind).observe(time.perf_counter() - started)
    REVIEWS.labels(kind, ALLOWED if review.is_allowed else DENIED).inc()
