"""Decides what a user may read, by SubjectAccessReviews (rules A1, A3).

Everything that is read goes through `authorise`, with a right and the clusters it is needed in. A
decision depends on the names that were asked for, never on whether they exist (rule A2).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol

import structlog

from fleetbus.clusters.registry import Clusters
from fleetbus.errors import ClusterNotFound, ConfigError, KubeError, NotEngaged
from fleetbus.kube.client import KubeClient
from fleetbus.process.log_once import LogOnce
from fleetbus_proto.resources import CORE
from fleetbus_query_api.access.cache import ExpiringCache
from fleetbus_query_api.access.metrics import ACCESS, KNOWN, measured
from fleetbus_query_api.access.reviews import Attributes, review_access
from fleetbus_query_api.limits.token_buckets import TokenBuckets
from fleetbus_query_api.limits.turns import Turns
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import (
    Problem,
    TooManyRequestsProblem,
    UnavailableProblem,
)

log = structlog.get_logger()

_CAPACITY: Final = 100_000
_PER_REQUEST: Final = 16
_AT_A_TIME: Final = 64
"""Reviews of one API server; one that hangs must not hold the turns of those that answer."""
REVIEW_BURST: Final = 5000
"""A first list over a fleet of 1,000 clusters takes a review for each, or two."""
REVIEWS_PER_SECOND: Final = 50
"""The rate for one user, once the burst is used up."""
MEMBER_WITHIN: Final = timedelta(seconds=3)
"""Time that the API server of a member has to decide."""
SHORT_WITHIN: Final = timedelta(seconds=0.5)
"""For an API server that has not answered within the last seconds: each list would wait for it."""
_SHORT_FOR: Final = timedelta(seconds=5)
_NAMED: Final = 5
"""Clusters that an error names."""
_FLEET: Final = "fleetbus.dev"
_CLUSTERS: Final = "clusters"
_OF_HUB: Final = "hub:"
_SYSTEM: Final = "system:"
_AUTHENTICATED: Final = "system:authenticated"


@dataclass(frozen=True, slots=True)
class Right:
    """A right to read objects of a resource, or with no resource the clusters themselves.

    Attributes:
        verb: `get`, `list` or `watch`.
        group: of the resource; `core` for the core group.
        namespace: the only one; empty for all.
        name: of the object, where only one is read.
    """

    verb: str
    group: str = ""
    plural: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def resource(self) -> str:
        """The name of the resource as in RBAC on the hub: `pods`, `deployments.apps`."""
        return self.plural if self.group == CORE else f"{self.plural}.{self.group}"

    def attributes(self) -> Attributes:
        """The right as the API server that has the objects is asked for it."""
        return Attributes(
            verb=self.verb,
            group="" if self.group == CORE else self.group,
            resource=self.plural,
            namespace=self.namespace,
            name=self.name,
        )


class Granted(frozenset[str]):
    """The clusters in which a user has a right.

    Attributes:
        undecided: those whose API server does not decide; neither granted nor denied.
    """

    undecided: frozenset[str]

    @classmethod
    def of(cls, clusters: Iterable[str], undecided: Iterable[str] = ()) -> Granted:
        """Make the outcome of some reviews."""
        granted = cls(clusters)
        granted.undecided = frozenset(undecided)
        return granted


class UndecidedProblem(UnavailableProblem):
    """503: a right is known in none of the clusters, and some of them do not decide."""

    def __init__(self, clusters: Iterable[str]) -> None:
        self.clusters = sorted(clusters)
        names = ", ".join(self.clusters[:_NAMED]) + (", …" if len(self.clusters) > _NAMED else "")
        super().__init__(
            f"your rights cannot be checked: the API server of {names} does not answer an access"
            " review of the query API. Try again"
        )


class Access(Protocol):
    """Decides what a user may read."""

    is_open: bool
    """Whether everybody may read everything, so that an error may tell what there is."""

    async def authorise(self, user: User, right: Right, clusters: Collection[str]) -> Granted:
        """Those of the clusters in which the user has a right.

        Raises:
            UnavailableProblem: the hub does not decide.
            UndecidedProblem: there is none, and some of the clusters do not decide.
        """
        ...

    async def is_allowed_on_hub(self, user: User, right: Right) -> bool:
        """Whether the user has a right on the hub itself: on its own objects, not on its fleet's.

        Raises:
            UnavailableProblem: the hub does not decide.
        """
        ...


class OpenAccess:
    """Lets everybody read everything: on loopback, in development."""

    is_open = True

    async def authorise(self, user: User, right: Right, clusters: Collection[str]) -> Granted:
        """All of the clusters."""
        del user, right
        return Granted.of(clusters)

    async def is_allowed_on_hub(self, user: User, right: Right) -> bool:
        """Yes."""
        del user, right
        return True


class _Case(NamedTuple):
    """The subject of one review; the key of the cache.

    Attributes:
        at: the cluster whose API server decides; empty for the hub.
    """

    at: str
    user: User
    attributes: Attributes


class Decisions:
    """Makes reviews, and keeps their outcomes for a while.

    Args:
        allow: how long an allow is kept.
        deny: how long a deny is kept.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, *, allow: timedelta, deny: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._allow = allow
        self._deny = deny
        self._known: ExpiringCache[_Case, bool] = ExpiringCache(_CAPACITY, clock)
        self._turns = Turns(each=_AT_A_TIME)
        # Bounds the reviews that one user causes: invented names are in no cache (rule A8).
        self._budgets = TokenBuckets(rate=REVIEWS_PER_SECOND, burst=REVIEW_BURST, clock=clock)

    async def decide(self, client: Callable[[], KubeClient], case: _Case) -> bool:
        """Whether a user may do something.

        Raises:
            TooManyRequestsProblem: the user causes too many reviews.
            FleetbusError: the API server cannot be asked, or does not decide.
        """
        decision = self._find(case)
        if decision is not None:
            return decision
        async with self._turns.take(case.at):
            decision = self._find(case)  # another request may have asked meanwhile
            if decision is None:
                self._spend(case.user)
                with measured(ACCESS) as review:
                    decision = await review_access(client(), case.user, case.attributes)
                    review.is_allowed = decision
                self._known.put(case, decision, self._allow if decision else self._deny)
        return decision

    def _find(self, case: _Case) -> bool | None:
        decision = self._known.get(case)
        if decision is not None:
            KNOWN.labels(ACCESS).inc()
        return decision

    def _spend(self, user: User) -> None:
        if wait := self._budgets.take(user.name):
            raise TooManyRequestsProblem(
                "your requests name too many clusters, namespaces or resources that"
                " were not checked before",
                wait_seconds=wait,
            )


class HubAccess:
    """Lets the RBAC of the hub decide.

    The right `list` on pods in namespace `a` of cluster `eu1` is `list` on the subresource `pods`
    of the Cluster `eu1` in namespace `a`: one review names all of them, so rights in one cluster
    and rights in one namespace never combine to more than what was granted.

    Args:
        hub: the client of the hub.
        decisions: makes the reviews.
    """

    is_open = False

    def __init__(self, *, hub: KubeClient, decisions: Decisions) -> None:
        self._hub = hub
        self._decisions = decisions
        self._failing = LogOnce()

    async def authorise(self, user: User, right: Right, clusters: Collection[str]) -> Granted:
        """Those of the clusters in which the user has a right on the hub; see `Access`."""
        everywhere = Attributes(
            verb=right.verb,
            group=_FLEET,
            resource=_CLUSTERS,
            subresource=right.resource if right.plural else "",
            namespace=right.namespace,
        )
        if not clusters or await self._decide(user, everywhere):
            return Granted.of(clusters)
        by_cluster = {name: replace(everywhere, name=name) for name in clusters if name}
        return await _granted(
            {name: self._decide(user, attributes) for name, attributes in by_cluster.items()}
        )

    async def is_allowed_on_hub(self, user: User, right: Right) -> bool:
        """Whether the user has a right on the hub itself; see `Access`."""
        return await self._decide(user, right.attributes())

    async def _decide(self, user: User, attributes: Attributes) -> bool:
        try:
            return await self._decisions.decide(lambda: self._hub, _Case("", user, attributes))
        except (KubeError, ConfigError) as e:
            if self._failing.should_log(str(e)):
                log.warning("access_review_failed", error=str(e))
            raise UnavailableProblem(
                "your rights cannot be checked: the hub's API server does not answer the query API"
                " or refuses it; the log of the query API has the reason. Try again"
            ) from None


class MemberAccess:
    """Lets the RBAC of each cluster decide, for users who may `get` its Cluster on the hub.

    A cluster that does not answer has decided nothing, and nothing of that is kept. Names that the
    hub itself gives out, like those of its ServiceAccounts, mean others in a member, and get a
    prefix there.

    Args:
        hub: decides who may know of which cluster.
        clusters: have the clients of the members.
        decisions: makes the reviews.
    """

    is_open = False

    def __init__(self, *, hub: HubAccess, clusters: Clusters, decisions: Decisions) -> None:
        self._hub = hub
        self._clusters = clusters
        self._decisions = decisions
        self._failing = LogOnce()
        # Until when little time is given to a cluster that does not answer.
        self._short_until: dict[str, float] = {}

    async def authorise(self, user: User, right: Right, clusters: Collection[str]) -> Granted:
        """Those of the clusters in which the user has a right there; see `Access`."""
        if not right.plural:
            return await self._hub.authorise(user, right, clusters)
        # First: else the time that an answer takes would tell which clusters there are (rule A2).
        visible = await self._hub.authorise(user, Right("get"), clusters)
        attributes = right.attributes()
        granted = await _granted({name: self._decide(user, name, attributes) for name in visible})
        if granted.undecided and not granted:
            raise UndecidedProblem(granted.undecided)
        return granted

    async def is_allowed_on_hub(self, user: User, right: Right) -> bool:
        """Whether the user has a right on the hub itself; see `Access`."""
        return await self._hub.is_allowed_on_hub(user, right)

    async def _decide(self, user: User, cluster: str, attributes: Attributes) -> bool | None:
        """Whether the user has a right; None if the cluster does not decide."""
        is_hub = bool(cluster) and cluster == self._clusters.hub
        case = _Case(cluster, user if is_hub else _as_foreigner(user), attributes)
        is_short = time.monotonic() < self._short_until.get(cluster, 0)
        try:
            within = SHORT_WITHIN if is_short else MEMBER_WITHIN
            async with asyncio.timeout(within.total_seconds()):
                decided = await self._decisions.decide(lambda: self._clusters.client(cluster), case)
        except ClusterNotFound:
            return False
        except (KubeError, ConfigError, NotEngaged, TimeoutError) as e:
            text = str(e) or "no answer in time"
            if self._failing.should_log(text, key=cluster):
                log.warning("access_review_failed", cluster=cluster, error=text)
            if not is_short:  # once in a while it gets all of the time
                self._short_until[cluster] = time.monotonic() + _SHORT_FOR.total_seconds()
            return None
        self._short_until.pop(cluster, None)
        return decided


async def _granted(reviews: Mapping[str, Coroutine[Any, Any, bool | None]]) -> Granted:
    """The names whose reviews allow; so many of a request are made at a time.

    Raises:
        UnavailableProblem: one was not decided.
        TooManyRequestsProblem: they are too many.
    """
    turns = asyncio.Semaphore(_PER_REQUEST)

    async def decide(review: Coroutine[Any, Any, bool | None]) -> bool | Problem | None:
        async with turns:
            try:
                return await review
            except Problem as e:
                return e

    outcomes = dict(zip(reviews, await asyncio.gather(*map(decide, reviews.values())), strict=True))
    for outcome in outcomes.values():
        if isinstance(outcome, Problem):
            raise outcome
    return Granted.of(
        (name for name, outcome in outcomes.items() if outcome is True),
        undecided=(name for name, outcome in outcomes.items() if outcome is None),
    )


def _as_foreigner(user: User) -> User:
    """The user as a member sees them: `system:` names of the hub mean nobody there."""
    return replace(
        user,
        name=_mark(user.name),
        groups=tuple(
            sorted(each if each == _AUTHENTICATED else _mark(each) for each in user.groups)
        ),
    )


def _mark(name: str) -> str:
    return f"{_OF_HUB}{name}" if name.startswith(_SYSTEM) else name


async def authorise_where_decided(
    access: Access, user: User, right: Right, clusters: Collection[str]
) -> Granted:
    """Those of the clusters in which the user has a right, as far as it is decided.

    For one of several things that an answer shows: the others must not be missing for it.

    Raises:
        UnavailableProblem: the hub does not decide.
    """
    try:
        return await access.authorise(user, right, clusters)
    except UndecidedProblem as e:
        return Granted.of((), undecided=e.clusters)
