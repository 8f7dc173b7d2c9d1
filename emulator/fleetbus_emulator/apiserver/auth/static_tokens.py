"""Static bearer tokens, like those of the API server's `--token-auth-file`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fleetbus_emulator.apiserver.auth.access import AUTHENTICATED, UNAUTHENTICATED, User

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

API_AUDIENCE = "https://kubernetes.default.svc.cluster.local"


class InvalidTokenError(Exception):
    """A token is known but not valid; the message is the error of a TokenReview."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of a token, and the requested audiences it is valid for."""

    user: User
    audiences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Token:
    user: User
    audiences: tuple[str, ...]
    ends: datetime | None


class Tokens:
    """The tokens of one cluster; they may come and go at any time.

    Args:
        clock: Gives the time, aware.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._tokens: dict[str, _Token] = {}

    def add(
        self, token: str, user: User, audiences: tuple[str, ...], ends: datetime | None
    ) -> None:
        """Accept a token from now on; replaces what the same token meant before."""
        self._tokens[token] = _Token(known(user), audiences, ends)

    def revoke(self, token: str) -> None:
        """Accept a token no longer.

        Raises:
            KeyError: There is no such token.
        """
        del self._tokens[token]

    def identify(self, token: str, audiences: tuple[str, ...]) -> Identity | None:
        """Authenticate a token; None if it is unknown, expired or for another audience."""
        entry = self._tokens.get(token)
        if entry is None or (entry.ends is not None and self._clock() >= entry.ends):
            return None
        common = tuple(audience for audience in audiences if audience in entry.audiences)
        return Identity(entry.user, common) if common else None


def known(user: User) -> User:
    """The user with the group of all authenticated users."""
    if AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED))
