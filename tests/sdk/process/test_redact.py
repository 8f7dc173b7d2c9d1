"""Addresses that are shown never hold what logs in there."""

from __future__ import annotations

import pytest

from fleetbus.errors import StoreError
from fleetbus.process.redact import without_secrets
from fleetbus.store.connection import connect
from support.rows import each_row

CANARY = "S3CRET"


@each_row(
    ("address", "expected"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("127.0.0.1:4222", "127.0.0.1:4222"),
        ("nats://admin:S3CRET@h:4222", "nats://h:4222"),
        ("admin:S3CRET@h:4222", "h:4222"),
        ("nats://S3CRET@h:4222", "nats://h:4222"),
        ("nats://a:S3CRET@h1,tls://S3CRET@h2:4222", "nats://h1,tls://h2:4222"),
        ("nats://a:S3CRET@h1,h2:4222", "nats://h1,h2:4222"),
        ("nats://a:S3CRET@h1,b:S3CRET@h2", "nats://h2"),
        ("redis://:S3CRET@h:6379/0", "redis://h:6379/0"),
        ("redis://u:S3CRET@S3CRET@h/0", "redis://h/0"),
        ("redis://:x,S3CRET@h/0", "redis://h/0"),
        ("redis://:x/S3CRET@h/0", "redis://h/0"),
        ("redis://h:6379/0?password=S3CRET", "redis://h:6379/0"),
        ("redis://h:6379/0?password=x@S3CRET", "redis://***"),
        ("redis://:x?S3CRET@h/0", "redis://***"),
        ("redis://:x#S3CRET@h/0", "redis://***"),
        ("unix:///run/redis.sock?password=S3CRET", "unix:///run/redis.sock"),
    ],
)
def test_an_address_is_shown_without_what_logs_in(address: str, expected: str):
    assert without_secrets(address) == expected
    assert CANARY not in expected


@each_row(
    "url",
    [
        "redis://:S3CRET@127.0.0.1:1/0",
        "redis://127.0.0.1:1/0?password=S3CRET",
        "redis://u:S3CRET/x@127.0.0.1:1/0",
    ],
)
async def test_an_error_about_redis_holds_no_password(url: str):
    with pytest.raises(StoreError) as caught:
        await connect(url)
    assert CANARY not in str(caught.value)
    assert caught.value.__suppress_context__
    assert CANARY not in str(caught.value.__cause__)
