"""Subjects and their tokens: reversible, always eight tokens, nothing hostile passes (B8, B9)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import (
    MAX_SUBJECT_BYTES,
    STREAM_SUBJECTS,
    EventSubject,
    Verb,
    control_subject,
    decode_token,
    encode_token,
    epochs_subject,
    event_subject,
    events_filter,
    parse_event_subject,
    status_subject,
)
from support.rows import each_row
from support.wire.strategies import ANY_TEXT, CLUSTERS, GROUPS, LABELS, NAMES, NAMESPACES

EVERY_BYTE = [chr(number) for number in range(256)]


@given(st.one_of(NAMES, ANY_TEXT))
@example("*")
@example(">")
@example("a b")
@example(".")
@example("..")
@example("system:node_reader%2F")
@example("\ud800")
@example("\ud83d\ude00")  # two halves, not the one character that they would name
def test_b8_every_name_is_read_back_from_its_token(name: str):
    assert decode_token(encode_token(name)) == name


@given(st.one_of(NAMES, ANY_TEXT))
def test_b8_a_token_is_plain_ascii_that_no_nats_server_can_misread(name: str):
    token = encode_token(name)
    assert token
    assert token.isascii()
    assert set(token).isdisjoint(". *>\t\r\n\0")
    assert token.isprintable()


def test_b8_every_character_of_one_byte_is_read_back():
    for character in EVERY_BYTE:
        assert decode_token(encode_token(character)) == character


def test_b8_two_names_never_share_a_token():
    names = [first + second for first in EVERY_BYTE for second in "._%-5Fa"]
    assert len({encode_token(name) for name in names}) == len(names)


@each_row(
    ("name", "token"),
    [
        ("web-5f6d:x", "web-5f6d:x"),
        ("kube-root-ca.crt", "kube-root-ca_crt"),
        ("a_b", "a%5Fb"),
        ("100%", "100%25"),
        ("a b", "a%20b"),
        ("*", "%2A"),
        (">", "%3E"),
        ("é", "%C3%A9"),
        ("\n", "%0A"),
    ],
)
def test_b8_tokens_look_as_the_contract_says(name: str, token: str):
    assert encode_token(name) == token


@each_row(
    "token",
    ["", "a.b", "a b", "*", ">", "%2a", "%2", "%", "%41", "%2E", "%FF", "%2D", "é", "a\n", "%C3"],
)
def test_b8_a_token_that_encode_token_did_not_write_is_refused(token: str):
    with pytest.raises(InvalidName, match=r"token|encoding|decode"):
        decode_token(token)


def test_b9_an_empty_token_is_refused_because_it_would_look_like_a_missing_stream():
    with pytest.raises(InvalidName, match="empty"):
        encode_token("")


@given(CLUSTERS, GROUPS, LABELS, NAMESPACES, NAMES, st.sampled_from(Verb))
def test_b8_every_event_subject_is_read_back(
    cluster: str, group: str, resource: str, namespace: str, name: str, verb: Verb
):
    subject = event_subject(cluster, group, resource, namespace, name, verb)
    assert subject.split(".")[0:2] == ["fleetbus", "events"]
    assert len(subject.split(".")) == 8
    assert parse_event_subject(subject) == EventSubject(
        cluster, group, resource, namespace, name, verb
    )


def test_b8_an_event_subject_looks_as_the_contract_says():
    assert (
        event_subject("eu1", "networking.k8s.io", "ingresses", "prod", "web.v2", "added")
        == "fleetbus.events.eu1.networking_k8s_io.ingresses.prod.web_v2.added"
    )
    assert (
        event_subject("eu1", "rbac.authorization.k8s.io", "clusterroles", "", "a b", Verb.LISTED)
        == "fleetbus.events.eu1.rbac_authorization_k8s_io.clusterroles.-.a%20b.listed"
    )


@each_row(
    ("parts", "reason"),
    [
        (("EU1", "core", "pods", "a", "b", "added"), "DNS-1123"),
        (("", "core", "pods", "a", "b", "added"), "DNS-1123"),
        (("e\n", "core", "pods", "a", "b", "added"), "DNS-1123"),
        (("eu1\n", "core", "pods", "a", "b", "added"), "DNS-1123"),
        (("e" * 64, "core", "pods", "a", "b", "added"), "DNS-1123"),
        (("eu1", "", "pods", "a", "b", "added"), "core"),
        (("eu1", "core", "", "a", "b", "added"), "empty"),
        (("eu1", "core", "pods", "-", "b", "added"), "no namespace"),
        (("eu1", "core", "pods", "a", "", "added"), "empty"),
        (("eu1", "core", "pods", "a", "b", ""), "verb"),
        (("eu1", "core", "pods", "a", "b", "Added"), "verb"),
        (("eu1", "core", "pods", "a", "b", "added.x"), "verb"),
        (("eu1", "core", "pods", "a", "b", "added\r\nPUB x 0\r\n"), "verb"),
    ],
)
def test_b9_what_no_subject_can_carry_is_refused_before_it_is_published(
    parts: tuple[str, str, str, str, str, str], reason: str
):
    with pytest.raises(InvalidName, match=reason):
        event_subject(*parts)


def test_b9_a_subject_over_the_servers_line_limit_is_refused():
    def subject(length: int) -> str:
        return event_subject("eu1", "core", "pods", "a", "n" * length, "added")

    room = MAX_SUBJECT_BYTES - len(subject(1)) + 1
    assert len(subject(room)) == MAX_SUBJECT_BYTES
    with pytest.raises(InvalidName, match="3801"):
        subject(room + 1)


async def test_b9_the_server_stores_the_longest_subject_that_we_write(nats: Client):
    jetstream = nats.jetstream()
    await jetstream.add_stream(name="LONG", subjects=["fleetbus.events.>"])
    start = len(event_subject("eu1", "core", "pods", "a", "x", "added")) - 1
    longest = event_subject("eu1", "core", "pods", "a", "n" * (MAX_SUBJECT_BYTES - start), "added")
    ack = await jetstream.publish(longest, b"x" * 100_000, headers={"Nats-Msg-Id": "i" * 5_000})
    stored = await jetstream.get_msg("LONG", ack.seq)
    assert stored.subject == longest


@each_row(
    "subject",
    [
        "",
        "fleetbus.events",
        "fleetbus.events.eu1.core.pods.a.b",
        "fleetbus.events.eu1.core.pods.a.b.added.c",
        "fleetbus.epochs.eu1.core.pods.a.b.added",
        "other.events.eu1.core.pods.a.b.added",
        "fleetbus.events.eu1.core.pods.a.b.patched",
        "fleetbus.events.eu1.core.pods.a..added",
        "fleetbus.events.eu1.core.pods..b.added",
        "fleetbus.events.EU1.core.pods.a.b.added",
        "fleetbus.events.eu1.core.pods.a.*.added",
        "fleetbus.events.eu1.core.pods.a.%2e.added",
    ],
)
def test_b8_a_subject_that_is_not_an_events_is_refused(subject: str):
    with pytest.raises(InvalidName):
        parse_event_subject(subject)


@given(st.text(max_size=60))
def test_b8_no_text_makes_the_subject_reader_fail_otherwise(text: str):
    for subject in (text, f"fleetbus.events.eu1.core.pods.a.{text}.added"):
        try:
            parse_event_subject(subject)
        except InvalidName:
            continue


@each_row(
    ("parts", "subscription"),
    [
        ({}, "fleetbus.events.>"),
        ({"cluster": "eu1"}, "fleetbus.events.eu1.>"),
        ({"group": "apps"}, "fleetbus.events.*.apps.>"),
        ({"resource": "pods"}, "fleetbus.events.*.*.pods.>"),
        ({"group": "apps.k8s.io", "namespace": "a"}, "fleetbus.events.*.apps_k8s_io.*.a.*.*"),
        ({"cluster": "eu1", "name": "a.b"}, "fleetbus.events.eu1.*.*.*.a_b.*"),
        ({"namespace": "-"}, "fleetbus.events.*.*.*.-.*.*"),
    ],
)
def test_a_filter_is_as_short_as_its_parts_allow(parts: dict[str, str], subscription: str):
    assert events_filter(**parts) == subscription


def test_b9_the_other_subjects_refuse_bad_names_too():
    assert epochs_subject("eu1", "apps", "deployments") == "fleetbus.epochs.eu1.apps.deployments"
    assert status_subject("eu1", "watcher-0.x") == "fleetbus.status.eu1.watcher-0_x"
    assert control_subject("eu1") == "fleetbus.control.eu1"
    with pytest.raises(InvalidName):
        epochs_subject("eu1", "", "deployments")
    with pytest.raises(InvalidName):
        status_subject("eu1", "")
    with pytest.raises(InvalidName):
        control_subject("eu1.>")


def test_everything_stored_is_under_three_subjects_and_control_is_not():
    assert STREAM_SUBJECTS == ("fleetbus.events.>", "fleetbus.epochs.>", "fleetbus.status.>")
