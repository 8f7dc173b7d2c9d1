"""The accounts of agents: what the chart's watcher may do, and no key twice (rule S3)."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from fleetbus.agents.accounts import render_accounts
from fleetbus.agents.nkeys import is_public_key, is_signed, make_seed, public_key, sign
from fleetbus.agents.records import AgentRecord, read_record, record_secret
from fleetbus.agents.rights import agent_rights, watcher_rights
from fleetbus.errors import ConfigError, CredentialsError
from fleetbus.process.clock import rfc3339
from support.api.rendered_chart import EU1, SEED, Object, render, secret
from support.rows import each_row

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
LATER = rfc3339(NOW + timedelta(hours=1), timespec="seconds")
KEYS = [public_key(make_seed()) for _ in range(6)]
CHART: Object = {
    "credentials": {"seed": SEED},
    "watchers": {"clusters": [EU1]},
    "agents": {"enabled": True},
}


def accounts_of_chart() -> str:
    return secret(render(CHART), "fb-fleetbus-nats-config")["accounts.conf"]


def test_s3_a_watcher_in_its_cluster_has_the_rights_of_one_on_the_hub():
    (block,) = re.findall(r'"watcher-eu1" \{.*?\n  \}', accounts_of_chart(), re.DOTALL)
    publish, subscribe = re.findall(r"allow: (\[.*?\])", block)
    rights = watcher_rights("eu1")
    assert json.loads(publish) == list(rights.publish)
    assert json.loads(subscribe) == list(rights.subscribe)


def test_s3_the_hub_exports_what_an_agent_imports_and_nothing_for_single_accounts_beside_it():
    text = accounts_of_chart()
    (exports,) = re.findall(r"exports: \[(.*?)\n    \]", text, re.DOTALL)
    exported = re.findall(r'\{ (service|stream): "(.*?)" \}', exports)
    assert len(exported) == len(re.findall(r"\{ ", exports))
    rights = agent_rights("eu1")
    for kind, subjects in (("service", rights.publish), ("stream", rights.imported)):
        for subject in subjects:
            patterns = [pattern for each, pattern in exported if each == kind]
            assert any(is_within(subject, pattern) for pattern in patterns), subject


def is_within(subject: str, pattern: str) -> bool:
    """Whether all that `subject` matches is matched by `pattern`."""
    wanted, allowed = subject.split("."), pattern.split(".")
    if allowed[-1] == ">":
        wanted, allowed = wanted[: len(allowed) - 1], allowed[:-1]
    same = len(wanted) == len(allowed)
    return same and all(b in ("*", a) for a, b in zip(wanted, allowed, strict=True))


def test_each_cluster_with_a_key_has_an_account_of_its_own():
    text = render_accounts(
        [
            AgentRecord(cluster="us1", one_time=KEYS[0], expires=LATER),
            AgentRecord(cluster="eu1", key=KEYS[1], next_key=KEYS[2]),
            AgentRecord(cluster="eu2", pending=KEYS[3]),
            AgentRecord(cluster="eu3", one_time=KEYS[4], expires=rfc3339(NOW)),
        ],
        NOW,
    )
    assert re.findall(r'^"(.*)" \{', text, re.MULTILINE) == ["agent-eu1", "agent-us1"]
    assert re.findall(r"nkey: (\w+)", text) == [KEYS[1], KEYS[2], KEYS[0]]
    assert "eu2" not in text


def test_a_key_that_two_clusters_have_counts_once():
    """nats-server refuses a configuration with a user twice, and with it every later change."""
    twice = [AgentRecord(cluster=name, key=KEYS[0], next_key=KEYS[0]) for name in ("b", "a")]
    text = render_accounts(twice, NOW)
    assert re.findall(r"nkey: (\w+)", text) == [KEYS[0]]
    assert '"agent-a"' in text


def test_a_record_can_be_read_back():
    record = AgentRecord(
        cluster="eu1",
        one_time=KEYS[0],
        expires=LATER,
        key=KEYS[1],
        next_key=KEYS[2],
        pending=KEYS[3],
        uid="0d8f",
        instance="agent-1",
        changed=LATER,
    )
    assert read_record(record_secret(record, "fleetbus-clusters")) == record
    assert record.accepted().key == KEYS[3]


@each_row(
    ("key", "value", "problem"),
    [
        ("key", "S" + KEYS[0][1:], "key is not the public nkey of a user"),
        (
            "nextKey",
            KEYS[0][:-1] + ("B" if KEYS[0].endswith("A") else "A"),
            "nextKey is not the public nkey",
        ),
        ("oneTimeKey", KEYS[0] + "\n", "oneTimeKey is not a short text"),
        ("key", "U } users", "key is not the public nkey of a user"),
        ("expires", "tomorrow", "expires is not a time"),
        ("uid", "x" * 300, "uid is not a short text"),
    ],
)
def test_what_is_no_record_is_refused(key: str, value: str, problem: str):
    record = AgentRecord(cluster="eu1", one_time=KEYS[0], expires=LATER)
    obj = record_secret(record, "n")
    obj["data"][key] = base64.b64encode(value.encode()).decode()
    with pytest.raises(ConfigError, match=problem) as error:
        read_record(obj)
    assert value not in str(error.value)


def test_a_record_has_the_name_of_its_cluster():
    obj = record_secret(AgentRecord(cluster="eu1", key=KEYS[0]), "n")
    obj["metadata"]["name"] = "eu2-agent"
    with pytest.raises(ConfigError, match="is named eu1-agent"):
        read_record(obj)
    obj["metadata"]["labels"]["fleetbus.dev/joined-cluster"] = '*"'
    with pytest.raises(ConfigError, match="not a DNS-1123 label"):
        read_record(obj)


def test_a_seed_signs_for_its_public_key_only():
    seed = make_seed()
    signature = sign(seed, b"message")
    assert is_signed(public_key(seed), b"message", signature)
    assert not is_signed(public_key(seed), b"another", signature)
    assert not is_signed(public_key(seed), b"message", b"short")
    assert not is_signed(KEYS[0], b"message", signature)
    assert not is_signed("no key", b"message", signature)


@each_row("text", ["", "U", "UAAA", KEYS[0].lower(), KEYS[0] + "=", "\u2603", "SUA" * 20])
def test_what_is_no_public_key(text: str):
    assert not is_public_key(text)


@each_row("text", ["", "SU", KEYS[0], "\u2603"])
def test_what_is_no_seed_is_not_quoted(text: str):
    with pytest.raises(CredentialsError) as error:
        public_key(text)
    assert not text or text not in str(error.value)
