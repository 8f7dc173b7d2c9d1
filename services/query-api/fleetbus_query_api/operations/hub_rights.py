"""Requires rights on the hub itself, for what belongs to no cluster of the fleet."""

from __future__ import annotations

from fleetbus_query_api.access.authorise import Access, Right
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import ForbiddenProblem


async def require_on_hub(access: Access, user: User, right: Right) -> None:
    """Require a right on the hub, in all namespaces.

    That such answers exist is no secret, unlike what is in the fleet (rule A2): so the refusal
    names the right.

    Raises:
        ForbiddenProblem: the user lacks it.
        UnavailableProblem: the hub does not decide.
    """
    if not await access.is_allowed_on_hub(user, right):
        raise ForbiddenProblem(f"you lack the right {right.verb} {right.resource} on the hub")
