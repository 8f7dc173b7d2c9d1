"""Fault rules: which requests or events an action applies to, and how often."""

from __future__ import annotations

import typing
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict, Unpack

from fleetbus_emulator.apiserver.faults.actions import (
    Action,
    CutAnswer,
    CutWatch,
    DropEvents,
    EndWatch,
    Expire,
    FieldError,
    GroupDown,
    HideBookmarks,
    LagWatch,
    PartialList,
    StaleList,
    StallWatch,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

READS = frozenset({"get", "list", "watch"})
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
VERBS = (*sorted(READS), *sorted(WRITES), "read", "write", "discover", "health")
MEANINGS = {"read": READS, "write": WRITES}
CORE = "core"  # what rules call the group without a name

SPENT_KEPT = 1_000
DECISIONS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """A request as rules see it.

    Attributes:
        verb: The verb of a resource, or discover or health.
        group: The API group; of a discovery document the one it is about.
        continued: Asks for page 2 or later.
        versioned: Names a resourceVersion.
        aggregated: Asks for all groups in one document.
        token: The bearer token.
    """

    verb: str
    group: str = ""
    plural: str = ""
    namespace: str | None = None
    name: str = ""
    subresource: str = ""
    user_agent: str = ""
    token: str = ""
    continued: bool = False
    versioned: bool = False
    aggregated: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """The requests that a rule matches; None matches all, discovery and health included.

    Attributes:
        verb: get, list, watch, create, update, patch, delete, deletecollection; `read` and `write`
            stand for several of these; `discover` and `health` are requests for no resource.
        group: An API group with its discovery, `core` for that without a name.
        resource: The plural, with or without `.group`, and `/subresource` for one of these.
        namespace: Requests in this namespace.
        name: Requests for this object.
        subresource: Requests for this subresource, of whatever resource.
        user_agent: A part of the User-Agent.
        token: The bearer token, for tokens that expire.
    """

    verb: str | None = None
    group: str | None = None
    resource: str | None = None
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None
    user_agent: str | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        if self.verb is not None and self.verb not in VERBS:
            raise FieldError("verb", f"must be one of {', '.join(VERBS)}")
        if self.resource == "":
            raise FieldError("resource", "must not be empty")

    def matches(self, attributes: RequestAttributes) -> bool:
        """Whether a request is meant."""
        return (
            (self.verb is None or self._matches_verb(attributes.verb))
            and (self.group is None or self.group == (attributes.group or CORE))
            and (self.resource is None or self._matches_resource(attributes))
            and (self.subresource is None or self.subresource == attributes.subresource)
            and (self.namespace is None or self.namespace == attributes.namespace)
            and (self.name is None or self.name == attributes.name)
            and (self.user_agent is None or self.user_agent in attributes.user_agent)
            and (self.token is None or self.token == attributes.token)
        )

    def _matches_verb(self, verb: str) -> bool:
        return verb in MEANINGS.get(self.verb or "", {self.verb})

    def _matches_resource(self, attributes: RequestAttributes) -> bool:
        named = self.resource or ""
        plural, _, subresource = named.partition("/")
        checked = subresource or self.subresource is None
        if checked and subresource != attributes.subresource:
            return False
        qualified = (
            f"{attributes.plural}.{attributes.group}" if attributes.group else attributes.plural
        )
        return plural in (attributes.plural, qualified)


class MatchFields(TypedDict, total=False):
    """The fields of `Match` as keyword arguments."""

    verb: str | None
    group: str | None
    resource: str | None
    namespace: str | None
    name: str | None
    subresource: str | None
    user_agent: str | None
    token: str | None


@dataclass(slots=True, eq=False)
class Rule:
    """A rule that was added.

    Attributes:
        id: Names it among the rules of its cluster.
        match: Which requests.
        action: What happens.
        count: The maximum number of hits; None for no limit.
        skip: The number of matches to skip before the first hit.
        probability: The probability that a match is a hit.
        random: The source of randomness for `probability`.
        on_removal: Called when it was removed.
        hits: The number of requests or events it applied to.
    """

    id: int
    match: Match
    action: Action
    count: int | None
    skip: int
    probability: float
    random: Random
    on_removal: Callable[[Rule], None]
    hits: int = 0
    removed: bool = False
    # Decisions about events, so that all watches get the same ones; only for DropEvents.
    _decisions: OrderedDict[tuple[int, str], bool] = field(
        default_factory=OrderedDict[tuple[int, str], bool]
    )

    @property
    def active(self) -> bool:
        """Whether it may apply to further requests or events."""
        return not self.removed and (self.count is None or self.hits < self.count)

    def remove(self) -> None:
        """Let everything alone from now on; stalled watches go on where they were."""
        if not self.removed:
            self.removed = True
            self.on_removal(self)

    def can_apply_to(self, attributes: RequestAttributes) -> bool:
        """Whether the action can do anything to such a request, and the request is meant."""
        action, match = self.action, self.match
        if isinstance(action, DropEvents):
            if attributes.namespace in (None, match.namespace):
                match = replace(match, namespace=None)
            match = replace(match, name=None)
        elif isinstance(action, GroupDown) and attributes.aggregated:
            match = replace(match, group=None)
        return _can_affect(action, attributes) and match.matches(attributes)

    def take_hit(self) -> bool:
        """Decide about one request or event that is meant, and count it."""
        if not self.active:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.probability < 1.0 and self.random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    def forget_events(self, rv: int) -> None:
        """Decide again about events behind a revision: others will have their revisions."""
        for event in [event for event in self._decisions if event[0] > rv]:
            del self._decisions[event]

    def drops(self, event: tuple[int, str], namespace: str, name: str) -> bool:
        """Whether the event of a revision and type about an object is never sent."""
        if not isinstance(self.action, DropEvents) or self.removed:
            return False
        event_type, match = self.action.type, self.match
        if event_type is not None and event_type != event[1]:
            return False
        if match.namespace not in (None, namespace) or match.name not in (None, name):
            return False
        decided = self._decisions.get(event)
        if decided is None:
            decided = self._decisions[event] = self.take_hit()
            if len(self._decisions) > DECISIONS_KEPT:
                self._decisions.popitem(last=False)
        return decided


_WATCHES_ONLY = (CutWatch, EndWatch, StallWatch, HideBookmarks, LagWatch, DropEvents)


def _can_affect(action: Action, attributes: RequestAttributes) -> bool:
    """Whether an action means anything to a request; what does not is not counted."""
    if isinstance(action, _WATCHES_ONLY):
        return attributes.verb == "watch"
    if isinstance(action, Expire):
        if action.where == "page":
            return attributes.verb == "list" and attributes.continued
        return attributes.verb == "watch"
    if isinstance(action, StaleList):
        return attributes.verb == "list" and attributes.versioned
    if isinstance(action, PartialList):
        return attributes.verb == "list"
    return not (isinstance(action, CutAnswer) and attributes.verb == "watch")


class Faults:
    """The rules of one cluster.

    Args:
        random: Decides for rules with a probability.
        present_rv: Tells the cluster's revision.
        added: Called with each new rule, to apply it to open watches.
        removed: Called after each removal.
    """

    def __init__(
        self,
        random: Random,
        *,
        present_rv: Callable[[], int],
        added: Callable[[Rule], None],
        removed: Callable[[], None],
    ) -> None:
        self._random = random
        self._present_rv = present_rv
        self._added = added
        self._removed = removed
        self._rules: dict[int, Rule] = {}
        self._live: list[Rule] = []  # those that may still apply
        self._last_id = 0

    def add(
        self,
        action: Action,
        *,
        count: int | None = None,
        skip: int = 0,
        nth: int | None = None,
        probability: float = 1.0,
        **requests: Unpack[MatchFields],
    ) -> Rule:
        """Add a rule.

        Args:
            action: What happens.
            count: The maximum number of hits; None for no limit.
            skip: The number of matches to skip before the first hit.
            nth: Hit only the nth match (from 1); instead of count and skip.
            probability: The probability that a match is a hit, above 0 and up to 1.
            requests: The requests it applies to, as the fields of `Match`; GroupDown needs `group`.

        Raises:
            FieldError: The rule makes no sense.
        """
        match = Match(**requests)
        if match.group == "":
            match = replace(match, group=CORE)
        count, skip = _checked_budget(count, skip, nth, probability)
        _check_applicable(action, match)
        if isinstance(action, StaleList) and action.resource_version is None:
            action = replace(action, resource_version=self._present_rv())
        self._last_id += 1
        rule = self._rules[self._last_id] = Rule(
            self._last_id, match, action, count, skip, probability, self._random, self._forget
        )
        self._live.append(rule)
        self._drop_oldest_spent()
        self._added(rule)
        return rule

    def get(self, rule_id: int) -> Rule | None:
        """The rule of an id; None if there is none, or it was removed."""
        return self._rules.get(rule_id)

    def list(self) -> list[Rule]:
        """The rules that were not removed, the oldest first; spent ones too."""
        return list(self._rules.values())

    def clear(self) -> None:
        """Remove all rules."""
        for rule in self.list():
            rule.remove()

    def forget_events(self, rv: int) -> None:
        """A backup of a revision was restored: what was decided about later events is void."""
        for rule in self._rules.values():
            rule.forget_events(rv)

    @property
    def active(self) -> bool:
        """Whether there is a rule that may apply."""
        return bool(self._live)

    def match(self, attributes: RequestAttributes) -> list[Rule]:
        """The rules that apply to a request; counts a hit of each."""
        return [rule for rule in tuple(self._live) if self.hit(rule, attributes)]

    def hit(self, rule: Rule, attributes: RequestAttributes) -> bool:
        """Decide about one rule and one request, and count it."""
        if not rule.can_apply_to(attributes):
            return False
        if isinstance(rule.action, DropEvents):
            return not rule.removed  # it counts events
        is_hit = rule.take_hit()
        if not rule.active and rule in self._live:
            self._live.remove(rule)
        return is_hit

    def _forget(self, rule: Rule) -> None:
        self._rules.pop(rule.id, None)
        if rule in self._live:
            self._live.remove(rule)
        self._removed()

    def _drop_oldest_spent(self) -> None:
        spent = [rule for rule in self._rules.values() if not rule.active]
        for rule in spent[: max(0, len(spent) - SPENT_KEPT)]:
            rule.remove()


def _check_applicable(action: Action, match: Match) -> None:
    """Refuse a rule that can never apply."""
    if not isinstance(action, typing.get_args(Action)):
        raise FieldError("action", f"must be an action like Fail(503), not {action!r}")
    if isinstance(action, GroupDown) and match.group is None:
        raise FieldError("group", "is needed to know which API group is down")
    verbs = MEANINGS.get(match.verb or "", {match.verb or "watch", match.verb or "list"})
    if not any(
        _can_affect(action, RequestAttributes(verb, continued=True, versioned=True))
        for verb in verbs
    ):
        raise FieldError(
            "verb", f"{match.verb} requests are never affected by {type(action).__name__}"
        )


def _checked_budget(
    count: int | None, skip: int, nth: int | None, probability: float
) -> tuple[int | None, int]:
    """Count and skip; `nth` stands for both."""
    if nth is not None:
        if count is not None or skip:
            raise FieldError("nth", "cannot be combined with count or skip")
        if nth < 1:
            raise FieldError("nth", "must be at least 1")
        return _checked_budget(1, nth - 1, None, probability)
    if count is not None and count < 1:
        raise FieldError("count", "must be at least 1")
    if skip < 0:
        raise FieldError("skip", "must not be negative")
    if not 0.0 < probability <= 1.0:
        raise FieldError("probability", "must be above 0 and at most 1")
    return count, skip
