"""Random names and messages of the wire contract, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from fleetbus_proto.events import (
    AuditPage,
    EpochEnd,
    Event,
    Heartbeat,
    Incarnation,
    Message,
    Rank,
    ResourceStatus,
    WatchSet,
)
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import Verb

_ENDS = "abcdefghijklmnopqrstuvwxyz0123456789"


def _labels(longest: int) -> st.SearchStrategy[str]:
    """DNS labels: `[a-z0-9]([-a-z0-9]*[a-z0-9])?`; `from_regex` would draw each character."""
    middle = st.text(_ENDS + "-", max_size=longest - 2)
    of_several = st.tuples(st.sampled_from(_ENDS), middle, st.sampled_from(_ENDS)).map("".join)
    return st.sampled_from(_ENDS) | of_several


CLUSTERS = _labels(63)
LABELS = _labels(22)
_STAGES = st.sampled_from(["", *(f"{word}{n}" for word in ("alpha", "beta") for n in range(1, 10))])
VERSIONS = st.builds("v{}{}".format, st.integers(1, 99), _STAGES)
GROUPS = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
RESOURCES = st.builds(Resource, GROUPS, VERSIONS, LABELS)

# What most names look like (DNS-1123 subdomains), and what RBAC lets through: any path segment
# but `.` and `..`, and without `/` and `%`. `%` is tested all the same.
SUBDOMAINS = st.lists(LABELS, min_size=1, max_size=5).map(".".join)
SEGMENTS = st.text(
    st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=40
).filter(lambda name: name not in {".", ".."})
NAMES = st.one_of(SUBDOMAINS, SEGMENTS, st.text("*>. _%-:~\t\r\n\0\x7fé☃😀", min_size=1))
NAMESPACES = st.one_of(st.just(""), LABELS)
# Also halves of surrogate pairs, which Python text can hold and UTF-8 cannot.
ANY_TEXT = st.text(st.characters(codec=None), min_size=1, max_size=40)

RESOURCE_VERSIONS = st.integers(0, 2**128 - 1).map(str)
RANKS = st.builds(Rank, RESOURCE_VERSIONS, st.integers(0, 2**62))
INCARNATIONS = st.builds(Incarnation, st.integers(0, 2**62), st.uuids().map(str))
_WORDS = st.text(st.characters(codec="utf-8"), max_size=20)
_REPLICAS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
_UIDS = st.uuids().map(str)
_TIMES = st.just("2026-08-09T12:00:00.000001Z")

EVENTS = st.builds(
    Event,
    cluster=CLUSTERS,
    incarnation=INCARNATIONS,
    group=GROUPS,
    version=VERSIONS,
    resource=LABELS,
    kind=_WORDS,
    namespace=NAMESPACES,
    name=NAMES,
    uid=_UIDS,
    resource_version=RESOURCE_VERSIONS,
    verb=st.sampled_from(Verb),
    epoch=RANKS,
    scope=_WORDS,
    observed_at=_TIMES,
    object=st.none() | st.binary(max_size=200),
    final_state_unknown=st.booleans(),
    left_selection=st.booleans(),
    degraded=st.sampled_from(["", "oversized", "unreadable"]),
)
EPOCH_ENDS = st.builds(
    EpochEnd,
    cluster=CLUSTERS,
    incarnation=INCARNATIONS,
    group=GROUPS,
    version=VERSIONS,
    resource=LABELS,
    kind=_WORDS,
    epoch=RANKS,
    scope=_WORDS,
    count=st.integers(0, 2**62),
    removed=st.booleans(),
    observed_at=_TIMES,
)
AUDIT_PAGES = st.builds(
    AuditPage,
    cluster=CLUSTERS,
    incarnation=INCARNATIONS,
    group=GROUPS,
    version=VERSIONS,
    resource=LABELS,
    epoch=RANKS,
    scope=_WORDS,
    page=st.integers(0, 2**62),
    last=st.booleans(),
    after=st.none() | st.tuples(NAMESPACES, NAMES),
    items=st.lists(st.tuples(NAMESPACES, NAMES, _UIDS, RESOURCE_VERSIONS), max_size=5),
    observed_at=_TIMES,
)
_STATUSES = st.builds(
    ResourceStatus,
    group=GROUPS,
    version=VERSIONS,
    resource=LABELS,
    kind=_WORDS,
    namespaced=st.booleans(),
    scope=_WORDS,
    namespace=_WORDS,
    state=st.sampled_from(["listing", "watching", "failing"]),
    reason=_WORDS,
    message=_WORDS,
    watch_open=st.booleans(),
    last_received=_WORDS,
    resource_version=RESOURCE_VERSIONS,
    lag_seconds=st.floats(0, 1e9),
)
_WATCH_SETS = st.builds(
    WatchSet,
    all=st.booleans(),
    deny=st.lists(LABELS, max_size=3),
    served=st.none() | st.lists(LABELS, max_size=3),
)
HEARTBEATS = st.builds(
    Heartbeat,
    cluster=CLUSTERS,
    replica=_REPLICAS,
    boot=_WORDS,
    incarnation=INCARNATIONS,
    server_version=_WORDS,
    platform=_WORDS,
    connected=st.booleans(),
    reason=_WORDS,
    message=_WORDS,
    last_answer=_WORDS,
    resources=st.lists(_STATUSES, max_size=3),
    watch_set=st.none() | _WATCH_SETS,
    invalid=st.lists(_WORDS, max_size=2),
    observed_at=_TIMES,
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(EVENTS, EPOCH_ENDS, AUDIT_PAGES, HEARTBEATS)
