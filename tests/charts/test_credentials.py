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
    render_files,
    secret,
)

SEEDED: Object = {"credentials": {"seed": SEED}}


def credentials(values: Object) -> dict[str, dict[str, str]]:
    return {
        one["metadata"]["name"]: one["stringData"]
        for one in of_kind(render(values), "Secret")
        if "username" in one.get("stringData", {})
    }


def test_an_upgrade_with_the_same_seed_keeps_every_password():
    before = credentials({**SEEDED, "watchers": {"clusters": [EU1]}})
    after = credentials({**VALUES["everything"], **SEEDED, "shards": 4})
    kept = before.keys() & after.keys()
    assert "fb-fleetbus-watcher-eu1-nats" in kept
    assert {name: before[name] for name in kept} == {name: after[name] for name in kept}
    assert len(after) > len(before)


def test_without_a_seed_one_is_made_and_kept_in_a_secret_of_its_own():
    files = [render_files({}) for _ in range(2)]
    texts = [
        next(t for p, t in one.items() if p.endswith("templates/secrets.yaml")) for one in files
    ]
    assert texts[0] != texts[1], "a seed that everybody knows"
    seed = find(render({}), "Secret", "fb-fleetbus-seed")
    made = base64.b64decode(seed["data"]["seed"]).decode()
    assert len(made) == 64
    # The seed in the Secret is the one that the passwords follow from.
    given = credentials({"credentials": {"seed": made}})
    assert given == credentials({})


def test_every_user_has_a_password_of_its_own():
    found = credentials(VALUES["everything"])
    passwords = [one["password"] for one in found.values()]
    assert len(set(passwords)) == len(passwords) > 10
    assert all(len(one) == 48 for one in passwords)


def test_one_password_is_rotated_without_the_others():
    before = credentials({**SEEDED, "externalSubscribers": [AUDIT]})
    rotated = {"credentials": {"seed": SEED, "rotate": {"subscriber-audit": "2"}}}
    after = credentials({**rotated, "externalSubscribers": [AUDIT]})
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"fb-fleetbus-subscriber-audit-nats"}


def test_a_subscriber_finds_all_it_needs_in_its_secret():
    found = secret(
        render({**SEEDED, "externalSubscribers": [AUDIT]}), "fb-fleetbus-subscriber-audit-nats"
    )
    assert found.pop("ca.crt").startswith("-----BEGIN CERTIFICATE-----")
    assert found | {"password": ""} == {
        "username": "subscriber-audit",
        "password": "",
        "url": "tls://fb-fleetbus-nats.fleetbus.svc:4222",
        "stream": "FLEETBUS_EVENTS",
        "durable": "subscriber-audit",
        "inboxPrefix": "_INBOX.subscriber.audit",
    }


def test_external_stores_bring_their_own_secrets_and_the_chart_makes_none():
    made = of_kind(render(VALUES["external"]), "Secret", "StatefulSet")
    names = [one["metadata"]["name"] for one in made]
    assert names == ["fb-fleetbus-ca", "fb-fleetbus-query-api-tls"]
