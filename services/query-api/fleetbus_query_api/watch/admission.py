"""Admits watches: so many of a user and of all, with so many requirements in selectors (A8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from prometheus_client import Gauge

from fleetbus_query_api.responses.problem import TooManyRequestsProblem
from fleetbus_query_api.settings import QueryApiSettings
from fleetbus_query_api.watch.selection import Selector

WATCHES: Final = Gauge("fleetbus_query_api_watches", "Open watches.")
_TRY_AGAIN_SECONDS: Final = 5.0


class Admission:
    """Counts the open watches, and the requirements of their selectors.

    Every change of an object is compared with each requirement of each selector that is not equal
    to another one, so these are bounded, for a user and for all.

    Args:
        settings: the limits.
    """

    def __init__(self, settings: QueryApiSettings) -> None:
        self._settings = settings
        self._watches = Counter[str]()
        self._selectors: dict[str, Counter[Selector]] = {}

    def admit(self, user: str, selector: Selector) -> Callable[[], None]:
        """Count a watch of a user, until the result is called.

        Raises:
            TooManyRequestsProblem: there are too many, or their selectors have too many
                requirements.
        """
        self._require_watch(user)
        selectors = self._selectors.get(user, Counter())
        if selector.weight and selector not in selectors:
            self._require_selector(selectors, selector)
        self._selectors.setdefault(user, selectors)[selector] += 1
        self._watches[user] += 1
        WATCHES.set(self._watches.total())
        return lambda: self._release(user, selector)

    def _require_watch(self, user: str) -> None:
        count, total = self._watches[user], self._watches.total()
        if count >= self._settings.user_watches:
            raise _too_many(f"{count} of your watches are open")
        if total >= self._settings.watches:
            raise _too_many(f"{total} watches are open")

    def _require_selector(self, selectors: Counter[Selector], selector: Selector) -> None:
        most, total = self._settings.user_watch_requirements, self._settings.watch_requirements
        if _weigh(selectors) + selector.weight > most:
            raise _too_many(
                f"the selectors of your open watches would have more than {most} requirements;"
                " watches with an equal selector share one"
            )
        if sum(map(_weigh, self._selectors.values())) + selector.weight > total:
            raise _too_many(f"the selectors of all open watches have {total} requirements")

    def _release(self, user: str, selector: Selector) -> None:
        selectors = self._selectors[user]
        selectors[selector] -= 1
        if not selectors[selector]:
            del selectors[selector]
        self._watches[user] -= 1
        if not self._watches[user]:
            del self._watches[user], self._selectors[user]
        WATCHES.set(self._watches.total())


def _weigh(selectors: Counter[Selector]) -> int:
    return sum(selector.weight for selector in selectors)


def _too_many(reason: str) -> TooManyRequestsProblem:
    return TooManyRequestsProblem(reason, wait_seconds=_TRY_AGAIN_SECONDS)
