"""Passwords of the embedded stores are made once, and stay.

`lookup` finds nothing without an API server, so what is shown here is all but the lookup itself: a
kept seed gives the same passwords, whatever else changes. That Secrets are found again is in
test_helm_release.py, on a real API server.
"""

from __future__ import annotations

import base64

from support.api.rendered_chart import (
    AUDIT,
    EU1,
    SEED,
    VALUES,
    Object,
    find,
    of_kind,
    render,
    render_anew,
    secret,
)

SEEDED: Object = {"credentials": {"seed": SEED}}


def credentials(values: Object) -> dict[str, dict[str, str]]:
    return {
        secret_object["metadata"]["name"]: secret_object["stringData"]
        for secret_object in of_kind(render(values), "Secret")
        if "username" in secret_object.get("stringData", {})
    }


def test_an_upgrade_with_the_same_seed_keeps_every_password():
    before = credentials({**SEEDED, "watchers": {"clusters": [EU1]}})
    after = credentials({**VALUES["everything"], **SEEDED, "shards": 4})
    common = before.keys() & after.keys()
    assert "fb-fleetbus-watcher-eu1-nats" in common
    assert {name: before[name] for name in common} == {name: after[name] for name in common}
    assert len(after) > len(before)


def test_without_a_seed_one_is_made_and_kept_in_a_secret_of_its_own():
    files = [render_anew({}) for _ in range(2)]
    texts = [
        next(t for p, t in file.items() if p.endswith("templates/secrets.yaml")) for file in files
    ]
    assert texts[0] != texts[1], "a seed that everybody knows"
    seed = find(render({}), "Secret", "fb-fleetbus-seed")
    seed_text = base64.b64decode(seed["data"]["seed"]).decode()
    assert len(seed_text) == 64
    # The seed in the Secret is the one that the passwords follow from.
    seeded_credentials = credentials({"credentials": {"seed": seed_text}})
    assert seeded_credentials == credentials({})


def test_every_user_has_a_password_of_its_own():
    all_credentials = credentials(VALUES["everything"])
    passwords = [login["password"] for login in all_credentials.values()]
    assert len(set(passwords)) == len(passwords) > 10
    assert all(len(password) == 48 for password in passwords)


def test_one_password_is_rotated_without_the_others():
    before = credentials({**SEEDED, "externalSubscribers": [AUDIT]})
    rotated = {"credentials": {"seed": SEED, "rotate": {"subscriber-audit": "2"}}}
    after = credentials({**rotated, "externalSubscribers": [AUDIT]})
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"fb-fleetbus-subscriber-audit-nats"}


def test_a_subscriber_finds_all_it_needs_in_its_secret():
    login = secret(
        render({**SEEDED, "externalSubscribers": [AUDIT]}), "fb-fleetbus-subscriber-audit-nats"
    )
    assert login.pop("ca.crt").startswith("-----BEGIN CERTIFICATE-----")
    assert login | {"password": ""} == {
        "username": "subscriber-audit",
        "password": "",
        "url": "tls://fb-fleetbus-nats.fleetbus.svc:4222",
        "stream": "FLEETBUS_EVENTS",
        "durable": "subscriber-audit",
        "inboxPrefix": "_INBOX.subscriber.audit",
    }


def test_external_stores_bring_their_own_secrets_and_the_chart_makes_none():
    objects = of_kind(render(VALUES["external"]), "Secret", "StatefulSet")
    names = [obj["metadata"]["name"] for obj in objects]
    assert names == ["fb-fleetbus-ca", "fb-fleetbus-query-api-tls"]
