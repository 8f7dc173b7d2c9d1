"""The user of a request, as the hub authenticated them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from starlette.types import Scope

from fleetbus_query_api.responses.problem import UnauthorizedProblem

_SCOPE_KEY: Final = "fleetbus.user"


@dataclass(frozen=True, slots=True)
class User:
    """A user with everything that a review may depend on; hashable, as the key of caches.

    Attributes:
        extra: sorted by key.
    """

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def to_review(self) -> dict[str, Any]:
        """The fields of a SubjectAccessReview that name the user."""
        extra = {key: list(values) for key, values in self.extra}
        fields = {"user": self.name, "uid": self.uid, "groups": list(self.groups), "extra": extra}
        return {key: value for key, value in fields.items() if value}


ANYONE: Final = User("")
"""The user of every request where nobody authenticates: on loopback, in development."""


def set_user(scope: Scope, user: User) -> None:
    """Record who sends a request."""
    scope[_SCOPE_KEY] = user


def find_user(scope: Scope) -> User | None:
    """The user of a request; None if nobody has authenticated them yet."""
    return scope.get(_SCOPE_KEY)


async def _user_of(request: Request) -> User:  # FastAPI calls others in a thread
    user = find_user(request.scope)
    if user is None:  # a route that the middleware does not cover must not be open to all
        raise UnauthorizedProblem("nobody has authenticated this request")
    return user


RequestUser = Annotated[User, Depends(_user_of)]
