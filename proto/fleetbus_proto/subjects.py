"""Every subject of fleetbus, and the encoding of a token.

    fleetbus.events.<cluster>.<group>.<resource>.<namespace>.<name>.<verb>
    fleetbus.epochs.<cluster>.<group>.<resource>
    fleetbus.status.<cluster>.<replica>
    fleetbus.control.<cluster>
    fleetbus.votes.<namespace>.<name>.<revision>.<wave>.<gate>
    fleetbus.distribution.<namespace>.<name>.<cluster>.<event>
    fleetbus.prior.<cluster>.<group>.<resource>.<namespace>.<name>
    fleetbus.api.<cluster>[.<instance>]
    fleetbus.answers.<cluster>.<component>.<process>.<call>
    fleetbus.registration.<cluster>

Inside a token `.` is written `_`, and every byte of the UTF-8 text other than
`A-Z a-z 0-9 - :` is percent-encoded (`_` too), so that any name can be read back (rule B8).
Nothing is hashed or cut; identity always comes from the body.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import CORE

STREAM = "FLEETBUS_EVENTS"
EVENTS_ALL = "fleetbus.events.>"
EPOCHS_ALL = "fleetbus.epochs.>"
STATUS_ALL = "fleetbus.status.>"
STREAM_SUBJECTS = (EVENTS_ALL, EPOCHS_ALL, STATUS_ALL)
DISTRIBUTION_STREAM = "FLEETBUS_DISTRIBUTION"
DISTRIBUTION_ALL = "fleetbus.distribution.>"
VOTES_ALL = "fleetbus.votes.>"
DISTRIBUTION_SUBJECTS = (DISTRIBUTION_ALL, VOTES_ALL)
PRIOR_STREAM = "FLEETBUS_PRIOR"
PRIOR_ALL = "fleetbus.prior.>"
API_ALL = "fleetbus.api.>"
ANSWERS_ALL = "fleetbus.answers.>"
REGISTRATIONS_ALL = "fleetbus.registration.*"
AGENTS = "agents"
"""The queue group of the agents of a cluster: each call goes to one of them."""
EVERY_AGENT = "every-agent"
"""In place of an instance, which has no `-`: all agents of a cluster."""
CONTROL_GRANTS = b"grants"
"""Body of a control message that is only about grants (rule W7); an empty body is about all."""
NO_NAMESPACE = "-"
NO_CLUSTER = "_fleet"
"""The cluster in the subject of a distribution event that is about none; no cluster is so named."""
MAX_SUBJECT_BYTES = 3800
"""nats-server closes the connection of a client whose PUB line is over 4,096 bytes, with reply and
sizes; and the name of a Role may have any length (rule B9)."""
_EVENT_TOKENS = 8
_VOTE_TOKENS = 7
_ANSWER_TOKENS = 4
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-:")
_ENCODE = {byte: chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in range(256)}
_ENCODE[ord(".")] = "_"
_CALL = re.compile(r"[a-z0-9][a-z0-9-]{0,79}\.[a-z0-9]{1,32}\.[a-z0-9]{1,16}")
_INSTANCE = re.compile(r"[a-z0-9]{1,32}")
_PLAIN = re.compile(r"[A-Za-z0-9:-]+")
_ENCODED = re.compile(r"(?:[A-Za-z0-9:_-]|%[0-9A-F]{2})+")
_CLUSTER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Verb(StrEnum):
    """The kind of a change; `listed` means that a list contains the object."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    LISTED = "listed"


_VERBS = frozenset(Verb)


class DistributionVerb(StrEnum):
    """The kind of a change that the distributor reports: of a cluster, or of a rollout."""

    APPLIED = "applied"
    WAITING = "waiting"
    CONFLICT = "conflict"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    HELD = "held"
    RELEASED = "released"
    DRIFTED = "drifted"
    CORRECTED = "corrected"
    DELETED = "deleted"
    WAVE_OPEN = "wave-open"
    WAVE_PASSED = "wave-passed"
    WAVE_FAILED = "wave-failed"
    PAUSED = "paused"
    RESUMED = "resumed"
    COMPLETE = "complete"
    UNDONE = "undone"


class EventSubject(NamedTuple):
    """The parts of an event's subject, decoded; `namespace` is empty for cluster-scoped objects."""

    cluster: str
    group: str
    resource: str
    namespace: str
    name: str
    verb: Verb


def encode_token(text: str) -> str:
    """Encode a string as one subject token.

    Raises:
        InvalidName: it is empty; an empty token would look like a missing stream (rule B9).
    """
    if _PLAIN.fullmatch(text):
        return text
    if not text:
        raise InvalidName("a subject token cannot be empty")
    return "".join([_ENCODE[byte] for byte in text.encode("utf-8", "surrogatepass")])


def decode_token(token: str) -> str:
    """Decode a token of `encode_token`.

    Raises:
        InvalidName: it is not a token of `encode_token`.
    """
    if not _ENCODED.fullmatch(token):
        raise InvalidName(f"{token!r} is not an encoded subject token")
    raw = re.sub(
        rb"%([0-9A-F]{2})|_",
        lambda m: bytes([int(m[1], 16)]) if m[1] else b".",
        token.encode("ascii"),
    )
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as e:
        raise InvalidName(f"{token!r} does not decode to text") from e
    if encode_token(text) != token:
        raise InvalidName(f"{token!r} is not the canonical encoding of {text!r}")
    return text


def check_cluster(name: str) -> str:
    """Return the name if it is a DNS-1123 label of at most 63 characters.

    Raises:
        InvalidName: it is not.
    """
    if not _CLUSTER.fullmatch(name):
        raise InvalidName(
            f"cluster name {name!r} is not a DNS-1123 label (a-z, 0-9 and -, at most 63 characters)"
        )
    return name


@lru_cache(maxsize=4096)
def _resource_tokens(cluster: str, group: str, resource: str) -> str:
    """The three tokens that all events of one resource share."""
    check_cluster(cluster)
    if not group:
        raise InvalidName(f"the core group is written {CORE!r}, not as an empty name")
    return f"{cluster}.{encode_token(group)}.{encode_token(resource)}"


@lru_cache(maxsize=4096)
def _namespace_token(namespace: str) -> str:
    if namespace == NO_NAMESPACE:
        raise InvalidName("'-' stands for no namespace and cannot be the name of one")
    return encode_token(namespace) if namespace else NO_NAMESPACE


def event_subject(
    cluster: str, group: str, resource: str, namespace: str, name: str, verb: str
) -> str:
    """The subject of one event; `namespace` is empty for a cluster-scoped object.

    Raises:
        InvalidName: a part cannot be represented in a subject.
    """
    if verb not in _VERBS:
        raise InvalidName(f"{verb!r} is not a verb of an event")
    prefix = _resource_tokens(cluster, group, resource)
    place = f"{_namespace_token(namespace)}.{encode_token(name)}"
    subject = f"fleetbus.events.{prefix}.{place}.{verb}"
    if len(subject) > MAX_SUBJECT_BYTES:
        raise InvalidName(f"a subject of {len(subject)} bytes is over {MAX_SUBJECT_BYTES}")
    return subject


def parse_event_subject(subject: str) -> EventSubject:
    """Parse the subject of an event.

    Raises:
        InvalidName: it is not a subject of `event_subject`.
    """
    tokens = subject.split(".")
    if len(tokens) != _EVENT_TOKENS or tokens[:2] != ["fleetbus", "events"]:
        raise InvalidName(f"{subject!r} is not the subject of an event")
    cluster, group, resource, namespace, name, verb = tokens[2:]
    if verb not in _VERBS:
        raise InvalidName(f"{subject!r} ends in an unknown verb")
    return EventSubject(
        check_cluster(cluster),
        decode_token(group),
        decode_token(resource),
        "" if namespace == NO_NAMESPACE else decode_token(namespace),
        decode_token(name),
        Verb(verb),
    )


def events_filter(
    *, cluster: str = "", group: str = "", resource: str = "", namespace: str = "", name: str = ""
) -> str:
    """The subject filter of a subscription for events; an empty part matches all."""
    tokens = [encode_token(part) if part else "*" for part in (cluster, group, resource)]
    if namespace or name:
        tokens += [encode_token(part) if part else "*" for part in (namespace, name)]
        return f"fleetbus.events.{'.'.join(tokens)}.*"
    while tokens and tokens[-1] == "*":
        tokens.pop()
    return ".".join(["fleetbus.events", *tokens, ">"])


def events_of_object(cluster: str, group: str, resource: str, namespace: str, name: str) -> str:
    """The subject filter of all events of one object, of the namespace `""` if it has none.

    Raises:
        InvalidName: a part cannot be represented in a subject.
    """
    place = f"{_namespace_token(namespace)}.{encode_token(name)}"
    return f"fleetbus.events.{_resource_tokens(cluster, group, resource)}.{place}.*"


def prior_subject(cluster: str, group: str, resource: str, namespace: str, name: str) -> str:
    """The subject of the recorded prior states of one object.

    Raises:
        InvalidName: a part cannot be represented in a subject.
    """
    place = f"{_namespace_token(namespace)}.{encode_token(name)}"
    return f"fleetbus.prior.{_resource_tokens(cluster, group, resource)}.{place}"


def deletions_filter(
    *, cluster: str = "", group: str = "", resource: str = "", namespace: str = "", name: str = ""
) -> str:
    """The subject filter of deletions; an empty part matches all."""
    parts = (cluster, group, resource, namespace, name)
    tokens = ".".join(encode_token(part) if part else "*" for part in parts)
    return f"fleetbus.events.{tokens}.{Verb.DELETED}"


def epochs_subject(cluster: str, group: str, resource: str) -> str:
    """The subject of the epoch ends and audit pages of one resource."""
    return f"fleetbus.epochs.{_resource_tokens(cluster, group, resource)}"


def status_subject(cluster: str, replica: str) -> str:
    """The subject of one watcher replica's heartbeats."""
    return f"fleetbus.status.{check_cluster(cluster)}.{encode_token(replica)}"


def control_subject(cluster: str) -> str:
    """The subject that wakes a cluster's watchers; its messages carry no state (rules W7, W20)."""
    return f"fleetbus.control.{check_cluster(cluster)}"


def votes_prefix(namespace: str, name: str, revision: str) -> str:
    """The prefix of the votes on one revision of a MultiClusterResource; wave and gate follow.

    Args:
        namespace: of the MultiClusterResource.
        name: of the MultiClusterResource.
        revision: its number and the hash of its content, so that a vote never counts for another.
    """
    parts = (namespace, name, revision)
    return f"fleetbus.votes.{'.'.join(map(encode_token, parts))}"


def vote_subject(prefix: str, wave: str, gate: str) -> str:
    """The subject of the votes on one gate of a wave.

    Args:
        prefix: of `votes_prefix`.
        wave: its name.
        gate: its name.
    """
    return f"{prefix}.{encode_token(wave)}.{encode_token(gate)}"


def parse_vote_subject(subject: str) -> tuple[str, str]:
    """The namespace and name of the MultiClusterResource that a vote is about.

    Raises:
        InvalidName: it is not the subject of a vote.
    """
    tokens = subject.split(".")
    if len(tokens) != _VOTE_TOKENS or tokens[:2] != ["fleetbus", "votes"]:
        raise InvalidName(f"{subject!r} is not the subject of a vote")
    return decode_token(tokens[2]), decode_token(tokens[3])


def distribution_subject(namespace: str, name: str, cluster: str, event: DistributionVerb) -> str:
    """The subject of an event of the distributor.

    Args:
        namespace: of the MultiClusterResource.
        name: of the MultiClusterResource.
        cluster: empty for an event that is about none.
        event: its kind.
    """
    # A placement may name what no cluster can be called.
    place = encode_token(cluster) if cluster else NO_CLUSTER
    return f"fleetbus.distribution.{encode_token(namespace)}.{encode_token(name)}.{place}.{event}"


def distribution_filter(*, namespace: str = "", name: str = "", cluster: str = "") -> str:
    """The subject filter of a subscription for events of the distributor; empty parts match all."""
    tokens = [encode_token(part) if part else "*" for part in (namespace, name, cluster)]
    return f"fleetbus.distribution.{'.'.join(tokens)}.*"


@lru_cache(maxsize=4096)
def api_subject(cluster: str, instance: str = "") -> str:
    """The subject of the calls to a cluster's API server through its agents.

    Args:
        cluster: its name.
        instance: the agent that has taken the call, for the frames that follow; `EVERY_AGENT`
            while the caller does not know it.

    Raises:
        InvalidName: the instance is none.
    """
    subject = f"fleetbus.api.{check_cluster(cluster)}"
    if not instance:
        return subject
    if instance != EVERY_AGENT and not is_instance(instance):
        raise InvalidName(f"{instance!r} is not the instance of an agent")
    return f"{subject}.{instance}"


def is_call_id(text: str) -> bool:
    """Whether this is the id of a call, which is safe in a subject."""
    return _CALL.fullmatch(text) is not None


def is_instance(text: str) -> bool:
    """Whether this is the name of an agent's process, which is safe in a subject."""
    return _INSTANCE.fullmatch(text) is not None


def answers_subject(cluster: str, call: str) -> str:
    """The subject of the answers to a call.

    Args:
        cluster: the cluster that is called.
        call: the id of the call, `<component>.<process>.<number>`.

    Raises:
        InvalidName: it is no id of a call.
    """
    if not is_call_id(call):
        raise InvalidName(f"{call!r} is not the id of a call")
    return f"fleetbus.answers.{check_cluster(cluster)}.{call}"


def answers_filter(caller: str) -> str:
    """The subject filter of the answers to all calls of one process.

    Raises:
        InvalidName: the caller's name is none.
    """
    if not is_call_id(f"{caller}.0"):
        raise InvalidName(f"{caller!r} is not the name of a caller")
    return f"fleetbus.answers.*.{caller}.>"


def parse_answers_subject(subject: str) -> tuple[str, str]:
    """The cluster that answers, and the id of the call.

    Raises:
        InvalidName: it is not a subject of `answers_subject`.
    """
    tokens = subject.split(".", 3)
    if len(tokens) != _ANSWER_TOKENS or tokens[:2] != ["fleetbus", "answers"]:
        raise InvalidName(f"{subject!r} is not the subject of an answer")
    if not is_call_id(tokens[3]):
        raise InvalidName(f"{subject!r} is not the subject of an answer")
    return check_cluster(tokens[2]), tokens[3]


def registration_subject(cluster: str) -> str:
    """The subject on which an agent of a cluster tells the hub its nkey."""
    return f"fleetbus.registration.{check_cluster(cluster)}"
