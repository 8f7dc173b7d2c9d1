"""Faults: rules that make one cluster answer wrongly on purpose.

A rule is a `Match` (which requests), an action (what happens) and a budget (how often). Actions on
watches also befall watches that are already open when the rule is added.

    cluster.faults.add(Fail(status=429, retry_after=timedelta(seconds=1)), verb="list", count=2)
    cluster.faults.add(Abort(after_commit=True), verb="create", resource="pods")
    stall = cluster.faults.add(StallWatch(), resource="configmaps")
    stall.remove()
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from fleetbus_devfleet.apiserver.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with an error Status and do nothing."""

    status: int
    reason: str | None = None
    message: str = "injected fault"
    retry_after: timedelta | None = None

    def to_error(self) -> ApiError:
        """The refusal."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(0, round(self.retry_after.total_seconds())))
        reason = self.reason or _REASONS.get(self.status, "InternalError")
        return ApiError(self.status, reason, self.message, headers=headers)


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Delay:
    """Answer correctly, but late."""

    duration: timedelta


@dataclass(frozen=True, slots=True)
class Hang:
    """Accept the request, do nothing and never answer."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Break the connection, either before anything happened or after the write was committed."""

    after_commit: bool = False


@dataclass(frozen=True, slots=True)
class Expire:
    """Too old: HTTP 410 when a watch opens, ERROR 410 in its stream, or 410 on page 2 and later.

    Attributes:
        where: open, stream or page.
        after_events: stream only: after so many lines.
    """

    where: Literal["open", "stream", "page"]
    after_events: int = 0


@dataclass(frozen=True, slots=True)
class CutWatch:
    """Break a watch's connection once it has sent so many lines, in the midst of the last one."""

    after_events: int = 1
    mid_line: bool = True


@dataclass(frozen=True, slots=True)
class StallWatch:
    """Keep a watch open and send nothing more once it has sent so many lines."""

    after_events: int = 0


@dataclass(frozen=True, slots=True)
class HideBookmarks:
    """Send no bookmarks."""


@dataclass(frozen=True, slots=True)
class StaleList:
    """Answer lists at resourceVersion=0 with the state of a past revision."""

    resource_version: int


Action = Fail | Delay | Hang | Abort | Expire | CutWatch | StallWatch | HideBookmarks | StaleList


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a rule is about; None matches all, discovery and health included.

    Attributes:
        verb: get, list, watch, create, update, patch, delete, deletecollection; `write` stands for
            all that change something.
        resource: The plural, with or without `.group`, and `/subresource` for one of these.
    """

    verb: str | None = None
    resource: str | None = None
    namespace: str | None = None
    name: str | None = None
    user_agent: str | None = None

    def fits(self, seen: Seen) -> bool:
        """Whether a request is meant."""
        verbs = (seen.verb, "write") if seen.verb in WRITES else (seen.verb,)
        return (
            (self.verb is None or self.verb in verbs)
            and (self.resource is None or self.resource in seen.resources())
            and (self.namespace is None or self.namespace == seen.namespace)
            and (self.name is None or self.name == seen.name)
            and (self.user_agent is None or self.user_agent in seen.user_agent)
        )


WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as rules see it; all is empty but the user agent if it is for no resource."""

    verb: str
    group: str
    plural: str
    namespace: str | None
    name: str
    subresource: str
    user_agent: str

    def resources(self) -> tuple[str, str]:
        """The names by which rules may call the resource."""
        tail = f"/{self.subresource}" if self.subresource else ""
        qualified = f"{self.plural}.{self.group}" if self.group else self.plural
        return (self.plural + tail, qualified + tail)


@dataclass(slots=True, eq=False)
class Rule:
    """A rule that was added.

    Attributes:
        hits: How many requests it has befallen.
        active: False once it is removed or used up.
    """

    match: Match
    action: Action
    count: int | None
    skip: int
    probability: float
    hits: int = 0
    removed: bool = False
    _listeners: list[Callable[[], None]] = field(default_factory=list["Callable[[], None]"])

    @property
    def active(self) -> bool:
        """Whether it may befall further requests."""
        return not self.removed and (self.count is None or self.hits < self.count)

    def remove(self) -> None:
        """Let requests alone from now on; stalled watches go on where they were."""
        self.removed = True
        for listener in self._listeners:
            listener()

    def on_removal(self, listener: Callable[[], None]) -> None:
        """Have a function called when the rule is removed."""
        self._listeners.append(listener)


class WatchFault:
    """What a rule does to one open watch; it counts the lines sent since it befell the watch.

    Args:
        rule: The rule.
        sent: How many lines the watch had sent by then.
    """

    def __init__(self, rule: Rule, sent: int = 0) -> None:
        self._rule = rule
        self._limit: int | None = None
        if isinstance(rule.action, CutWatch | StallWatch | Expire):
            self._limit = sent + rule.action.after_events

    @property
    def hides_bookmarks(self) -> bool:
        """No bookmarks."""
        return isinstance(self._rule.action, HideBookmarks) and not self._rule.removed

    def allowance(self, sent: int) -> int | None:
        """How many more lines may be sent before the fault strikes; None for no limit."""
        if self._limit is None or self._rule.removed:
            return None
        action = self._rule.action
        if isinstance(action, Expire) and action.where != "stream":
            return None
        return max(0, self._limit - sent)

    def strikes(self, sent: int) -> Action | None:
        """What befalls the watch now; None while it may go on."""
        return self._rule.action if self.allowance(sent) == 0 else None


class Faults:
    """The rules of one cluster.

    Args:
        random: Decides for rules with a probability.
        added: Is told of each new rule, to befall watches that are open.
    """

    def __init__(self, random: Random, added: Callable[[Rule], None]) -> None:
        self._random = random
        self._added = added
        self._rules: list[Rule] = []

    def add(
        self,
        action: Action,
        *,
        verb: str | None = None,
        resource: str | None = None,
        namespace: str | None = None,
        name: str | None = None,
        user_agent: str | None = None,
        count: int | None = None,
        skip: int = 0,
        probability: float = 1.0,
    ) -> Rule:
        """Add a rule.

        Args:
            action: What happens.
            verb: See `Match`.
            resource: See `Match`.
            namespace: Only requests in this namespace.
            name: Only requests for this object.
            user_agent: Only clients whose User-Agent contains this.
            count: Befall so many requests and no more; None for no end.
            skip: Let the first so many matching requests alone.
            probability: Befall a matching request with this probability.
        """
        match = Match(verb, resource, namespace, name, user_agent)
        rule = Rule(match, action, count, skip, probability)
        self._rules.append(rule)
        self._added(rule)
        return rule

    def clear(self) -> None:
        """Remove all rules."""
        for rule in self._rules:
            rule.remove()
        self._rules.clear()

    def strike(self, seen: Seen) -> list[Rule]:
        """The rules that befall a request, each counted."""
        if not self._rules:
            return []
        return [rule for rule in self._rules if rule.active and self.befalls(rule, seen)]

    def befalls(self, rule: Rule, seen: Seen) -> bool:
        """Decide about one rule and one request, and count it."""
        if not rule.match.fits(seen):
            return False
        if rule.skip > 0:
            rule.skip -= 1
            return False
        if rule.probability < 1.0 and self._random.random() >= rule.probability:
            return False
        rule.hits += 1
        return True
