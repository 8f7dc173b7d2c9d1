"""Keys: one hash tag per script, legal in the bucket, and no object's name in it (P16, B8)."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import given

from fleetbus_proto import keys
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import Resource
from support.rows import each_row
from support.wire.strategies import CLUSTERS, GROUPS, LABELS, NAMES, NAMESPACES

KEYS = SnapshotKeys(4)
EU1 = KEYS.shard_of("eu1")
SNAPSHOT = [
    KEYS.generation(EU1),
    KEYS.counter(EU1),
    KEYS.feed(EU1),
    KEYS.feed_generation(EU1),
    KEYS.clusters(EU1),
    KEYS.resources("eu1"),
    KEYS.scopes("eu1"),
    KEYS.bodies("eu1", "core/pods"),
    KEYS.guards("eu1", "core/pods"),
    KEYS.tombstones("eu1", "core/pods"),
    KEYS.deleted("eu1", "core/pods"),
    KEYS.deletion_times("eu1", "core/pods"),
    KEYS.order("eu1", "core/pods"),
    KEYS.labels("eu1", "core/pods", "app=web"),
    KEYS.owners(EU1, "u-1"),
    KEYS.epochs("eu1", "core/pods", ""),
    KEYS.offset_checkpoint(EU1, "projector"),
    KEYS.replay_claim(EU1, "projector"),
    KEYS.store(EU1),
]
# What nats-py 2.16 accepts as a key: no `%`, no `:`.
KV_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")


@given(NAMESPACES, NAMES)
def test_an_object_key_is_read_back(namespace: str, name: str):
    assert keys.split_object_key(keys.object_key(namespace, name)) == (namespace, name)


@each_row("key", SNAPSHOT)
def test_p16_every_key_of_the_snapshot_has_its_one_hash_tag(key: str):
    assert re.findall(r"\{(.*?)\}", key) == [f"fleet:{EU1}"]


def test_p16_a_cluster_stays_in_its_shard_in_every_release_and_language():
    # CRC-32 of the name in UTF-8, as zlib and every standard library compute it.
    assert [KEYS.shard_of(name) for name in ("eu1", "us1", "hub", "a")] == [0, 2, 1, 3]
    assert KEYS.bodies("eu1", "core/pods") == "fleetbus:{fleet:0}:bodies:eu1:core/pods"


def test_p16_clusters_are_divided_among_all_shards():
    keys_of_sixteen = SnapshotKeys(16)
    shards = [keys_of_sixteen.shard_of(f"cluster-{number}") for number in range(1600)]
    assert set(shards) == set(range(16))
    assert max(map(shards.count, range(16))) < 2 * len(shards) / 16


def test_p16_every_key_of_a_queue_has_the_queues_hash_tag():
    assert keys.queue("copier", "ready") == "fleetbus:{q:copier}:ready"
    assert keys.queue_checkpoint("copier", "copier-a").startswith("fleetbus:{q:copier}:")
    assert keys.queue_replay_claim("copier").startswith("fleetbus:{q:copier}:")
    assert keys.missing_objects("u-1") == "fleetbus:{mcr:u-1}:missing"
    assert keys.status_written("u-1") == "fleetbus:{mcr:u-1}:written"


def test_no_two_kinds_of_keys_collide():
    assert len(set(SNAPSHOT)) == len(SNAPSHOT)


@given(CLUSTERS, GROUPS, LABELS)
def test_b8_s3_every_key_of_the_bucket_is_legal_and_starts_with_its_cluster(
    cluster: str, group: str, plural: str
):
    key_names = [
        keys.kv_incarnation(cluster),
        keys.kv_checkpoint(cluster, group, plural, ""),
        keys.kv_checkpoint(cluster, group, plural, "0a1b2c"),
        keys.kv_epoch(cluster, group, plural),
        keys.kv_grant(cluster, group, plural),
        keys.kv_audit(cluster, group, plural, ""),
        keys.kv_refused(cluster),
        keys.kv_types(cluster),
        keys.kv_message_key(cluster),
    ]
    assert len(set(key_names)) == len(key_names)
    for key in key_names:
        assert KV_KEY.fullmatch(key)
        assert key.startswith(f"{cluster}.")


@given(CLUSTERS, GROUPS, LABELS)
def test_s3_no_key_that_only_the_hub_may_write_starts_with_a_cluster(
    cluster: str, group: str, plural: str
):
    key_names = [
        keys.kv_accepted(cluster),
        keys.kv_access(cluster),
        keys.kv_identity(cluster),
        keys.kv_watch_spec(cluster),
        keys.kv_resync(cluster, group, plural),
        keys.kv_audit_request(cluster),
    ]
    assert len(set(key_names)) == len(key_names)
    for key in key_names:
        assert KV_KEY.fullmatch(key)
        assert key.startswith(f"_hub.{cluster}.")
        assert keys.kv_cluster(key) == cluster


@given(CLUSTERS, GROUPS, LABELS)
def test_the_key_of_a_grant_is_read_back_and_lies_below_its_filter(
    cluster: str, group: str, plural: str
):
    key = keys.kv_grant(cluster, group, plural)
    assert keys.split_kv_grant(key) == (cluster, group, plural)
    assert keys.KV_GRANTS.split(".") == ["*", key.split(".")[1]]


@each_row("key", ["_hub.eu1.resync.core.pods", "eu1.grant.core", "eu1.grant.x.y.z"])
def test_another_key_is_not_that_of_a_grant(key: str):
    with pytest.raises(ValueError, match=r"grant|unpack"):
        keys.split_kv_grant(key)


def test_w20_a_resync_request_is_found_by_its_key():
    key = keys.kv_resync("eu1", "networking.k8s.io", "ingresses")
    resource = Resource("networking.k8s.io", "", "ingresses")
    assert keys.split_kv_resync(key) == ("eu1", resource)
    assert keys.KV_RESYNC == "_hub.*.resync"
    for other in ("eu1.grant.core.pods", "_hub.eu1.watch.core.pods", "_hub.eu1.resync.core.X"):
        with pytest.raises(ValueError, match=r"resync|unpack"):
            keys.split_kv_resync(other)


def test_b8_the_key_of_a_controller_is_no_clusters():
    assert keys.kv_reader("copier", "0a1b") == "_controllers.copier.0a1b"


def test_b8_the_keys_of_the_pool_are_no_clusters_and_lie_below_their_prefixes():
    assert keys.kv_pool_member("r-0") == f"{keys.KV_POOL_MEMBERS}.r-0" == "_pool.member.r-0"
    assert keys.kv_pool_lease("eu1") == f"{keys.KV_POOL_LEASES}.eu1" == "_pool.lease.eu1"
    assert KV_KEY.fullmatch(keys.kv_pool_lease("eu1"))


def test_b8_no_key_of_the_bucket_takes_the_name_of_an_object():
    functions = inspect.getmembers(keys, inspect.isfunction)
    own_functions = [(name, f) for name, f in functions if f.__module__ == keys.__name__]
    taking = [name for name, f in own_functions if "name" in inspect.signature(f).parameters]
    assert taking == ["object_key"]
