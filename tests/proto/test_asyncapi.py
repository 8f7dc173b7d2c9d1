"""proto/asyncapi.yaml: made from the code, and true of real messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from fleetbus_proto import codec, headers, subjects
from fleetbus_proto.calls import encode_frame
from fleetbus_proto.distribution import (
    DistributionEvent,
    decode_distribution_event,
    encode_distribution_event,
)
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import AuditPage, EpochEnd, Event, Heartbeat, Message
from fleetbus_proto.votes import Vote, decode_vote, encode_vote
from support.rows import each_row
from support.wire import asyncapi
from support.wire.frames import FRAMES
from support.wire.samples import DISTRIBUTION, GOLDEN, MESSAGE_KEY

FILE = Path(__file__).parents[2] / "proto" / "asyncapi.yaml"


@pytest.fixture(scope="module")
def document(update_golden: bool) -> dict[str, Any]:
    if update_golden:
        FILE.write_text(asyncapi.text(), encoding="utf-8")
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def _body(message: Message) -> Any:
    """A message as another language reads it, with the one change that JSON needs."""
    return msgspec.to_builtins(msgspec.msgpack.decode(codec.encode(message)))


def _address_of(message: Message) -> str:
    m = message
    if isinstance(m, Heartbeat):
        return subjects.status_subject(m.cluster, m.replica)
    if isinstance(m, Event):
        return subjects.event_subject(m.cluster, m.group, m.resource, m.namespace, m.name, m.verb)
    return subjects.epochs_subject(m.cluster, m.group, m.resource)


def test_the_file_is_what_the_code_says(document: dict[str, Any]):
    assert document == asyncapi.document(), "run `make golden`"


@each_row("name", sorted(GOLDEN))
def test_every_vector_is_valid(document: dict[str, Any], name: str):
    message = GOLDEN[name]
    kind = type(message).__name__
    components = {"components": document["components"]}
    payload = {**document["components"]["messages"][kind]["payload"], **components}
    jsonschema.validate(_body(message), payload)
    jsonschema.validate(
        headers.build(message, MESSAGE_KEY), document["components"]["schemas"]["Headers"]
    )


@each_row("name", sorted(GOLDEN))
def test_every_vector_has_the_address_of_its_channel(document: dict[str, Any], name: str):
    message = GOLDEN[name]
    (address,) = [
        channel["address"]
        for channel in document["channels"].values()
        if type(message).__name__ in channel["messages"]
    ]
    pattern = re.sub(r"\\\{\w+\\\}", r"[^.]+", re.escape(address))
    assert re.fullmatch(pattern, _address_of(message))


@pytest.mark.parametrize(
    "change",
    [{"cluster": 1}, {"verb": "renamed"}, {"type": "event.v2"}, {"epoch": {"id": "x"}}],
)
def test_what_is_no_message_is_not_valid(document: dict[str, Any], change: dict[str, Any]):
    payload = {
        **document["components"]["messages"]["Event"]["payload"],
        "components": document["components"],
    }
    body = {**_body(GOLDEN["event-added"]), **change}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, payload)


def test_every_reference_leads_somewhere(document: dict[str, Any]):
    def walk(tree: Any) -> None:
        if isinstance(tree, list):
            for each in tree:  # pyright: ignore[reportUnknownVariableType]
                walk(each)
        if isinstance(tree, dict):
            for key, value in tree.items():  # pyright: ignore[reportUnknownVariableType]
                if key == "$ref":
                    target: Any = document
                    for segment in str(value).removeprefix("#/").split("/"):  # pyright: ignore[reportUnknownArgumentType]
                        target = target[segment]
                walk(value)

    walk(document)


def test_every_parameter_and_every_message_is_described(document: dict[str, Any]):
    for channel in document["channels"].values():
        named = set(re.findall(r"\{(\w+)\}", channel["address"]))
        assert named == channel["parameters"].keys()
    reported = {name for channel in document["channels"].values() for name in channel["messages"]}
    of_watchers = (Event, EpochEnd, AuditPage, Heartbeat)
    others = (Vote, DistributionEvent, *asyncapi.FRAMES, *asyncapi.REGISTRATIONS)
    assert reported == {kind.__name__ for kind in (*of_watchers, *others)}


@each_row("name", sorted(FRAMES))
def test_every_frame_is_what_the_document_says(document: dict[str, Any], name: str):
    frame = FRAMES[name]
    payload = document["components"]["schemas"][type(frame).__name__]
    body = msgspec.to_builtins(msgspec.msgpack.decode(encode_frame(frame)))
    jsonschema.validate(body, {**payload, "components": document["components"]})


@pytest.mark.parametrize("vote", [Vote(vote="pass"), Vote(vote="fail", reason="slow: 3 s")])
def test_a_vote_is_what_the_document_says_and_can_be_read_back(
    document: dict[str, Any], vote: Vote
):
    body = encode_vote(vote)
    payload = document["components"]["schemas"]["Vote"]
    jsonschema.validate(json.loads(body), payload)
    assert decode_vote(body) == vote


@each_row("body", [b"", b"\xff", b"[]", b"{}", b'{"vote": "maybe"}', b"[" * 9999])
def test_what_is_no_vote_is_none(body: bytes):
    assert decode_vote(body) is None


def test_what_the_distributor_tells_is_what_the_document_says(document: dict[str, Any]):
    body = encode_distribution_event(DISTRIBUTION)
    payload = document["components"]["schemas"]["DistributionEvent"]
    schema = {**payload, "components": document["components"]}
    jsonschema.validate(json.loads(body), schema)
    newer = json.loads(body) | {"added": "in a later version"}
    assert decode_distribution_event(json.dumps(newer).encode()) == DISTRIBUTION
    verbs = document["channels"]["distribution"]["parameters"]["event"]["enum"]
    assert verbs == [verb.value for verb in subjects.DistributionVerb]
    for wrong in (b"", b"\xff", b"[]", b"{}", b"[" * 9999):
        assert decode_distribution_event(wrong) is None
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(body) | {"event": "exploded"}, schema)


def test_b8_the_subject_of_what_the_distributor_tells():
    verb = subjects.DistributionVerb.WAVE_OPEN
    subject = subjects.distribution_subject("team-a", "web_1.x", "", verb)
    assert subject == "fleetbus.distribution.team-a.web%5F1_x._fleet.wave-open"
    subject = subjects.distribution_subject("team-a", "web", "eu1", verb)
    assert subject == "fleetbus.distribution.team-a.web.eu1.wave-open"
    # What a placement names need not be the name of a cluster.
    subject = subjects.distribution_subject("team-a", "web", "a b.>", verb)
    assert subject == "fleetbus.distribution.team-a.web.a%20b_%3E.wave-open"
    assert subjects.encode_token(subjects.NO_CLUSTER) != subjects.NO_CLUSTER
    assert subjects.distribution_filter(cluster="eu1") == "fleetbus.distribution.*.*.eu1.*"


def test_b8_the_subject_of_a_vote_can_be_read_back():
    prefix = subjects.votes_prefix("team.a", "web_1.x", "3-0a1b")
    subject = subjects.vote_subject(prefix, "eu-1", "load-test")
    assert len(subject.split(".")) == 7
    assert subjects.parse_vote_subject(subject) == ("team.a", "web_1.x")
    for wrong in ("fleetbus.votes.a", f"{subject}.x", "fleetbus.events.a.b.c.d.e"):
        with pytest.raises(InvalidName):
            subjects.parse_vote_subject(wrong)
