"""Addresses of Sentinels and Clusters: what they mean, and what is wrong with the others."""

from __future__ import annotations

import pytest

from fleetbus.errors import StoreError
from fleetbus.store.address import ClusterAddress, Credentials, SentinelAddress, parse_address
from support.rows import each_row

NOBODY = Credentials()


def test_a_cluster_is_some_of_its_nodes():
    assert parse_address("redis+cluster://a:7001,b") == ClusterAddress(
        (("a", 7001), ("b", 6379)), NOBODY, is_tls=False
    )
    assert parse_address("rediss+cluster://me:p%40ss@[::1]:7001/0") == ClusterAddress(
        (("::1", 7001),), Credentials("me", "p@ss"), is_tls=True
    )


def test_sentinels_name_a_master():
    url = "redis+sentinel://me:pw@s1:26380,s2/mymaster/3?sentinel_password=x%26y"
    assert parse_address(url) == SentinelAddress(
        (("s1", 26380), ("s2", 26379)),
        "mymaster",
        3,
        Credentials("me", "pw"),
        Credentials("", "x&y"),
        is_tls=False,
    )
    short = parse_address("rediss+sentinel://s1/mymaster")
    assert isinstance(short, SentinelAddress)
    assert (short.database, short.is_tls) == (0, True)


@each_row("url", ["redis://a:1/0", "rediss://a", "unix:///tmp/x", "nonsense"])
def test_one_server_is_left_to_redis_py(url: str):
    assert parse_address(url) is None


@each_row(
    ("url", "why"),
    [
        ("redis+proxy://h:1", "scheme 'redis\\+proxy' is unknown"),
        ("valkey+cluster://h:1", "scheme 'valkey\\+cluster' is unknown"),
        ("redis+cluster://h:1/2", "only the database 0"),
        ("redis+cluster://h:1?x=1", "no options"),
        ("redis+cluster://:secret@", "a host, or the number of its port, is invalid"),
        ("redis+cluster://:secret@h:port", "number of its port"),
        ("redis+cluster://:secret@h:99999", "number of its port"),
        ("redis+cluster://:secret@h:1,,g:2", "a host,"),
        ("redis+cluster://me:secret#1@h:1", "in a password as %2F"),
        ("redis+cluster://me:secret/1@h:1", "in a password as %2F"),
        ("redis+sentinel://me:12/secret@h:1", "in a password as %2F"),
        ("redis+sentinel://:secret@h:1", "must be followed by /MASTER"),
        ("redis+sentinel://:secret@h:1/m/x", "must be followed by /MASTER"),
        ("redis+sentinel://:secret@h:1/m/1/2", "must be followed by /MASTER"),
        ("redis+sentinel://:secret@h:1/m?pass=secret", "unknown options: pass"),
        ("redis+sentinel://:secret@h:1/m?secret", "invalid address"),
        ("redis+cluster://:secret@[::1", "invalid address"),
    ],
)
def test_a_malformed_address_is_refused_without_its_secrets(url: str, why: str):
    with pytest.raises(StoreError, match=why) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value.__cause__)
