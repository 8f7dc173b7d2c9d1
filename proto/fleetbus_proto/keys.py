"""Every key of fleetbus in Redis and in the NATS key-value bucket.

Redis: all keys that one script touches share a hash tag (rule P16): `{fleet:<n>}` for one shard of
the snapshot, `{q:<controller>}` for the queue of one controller, `{deletions}` for the budget of
deletions, `{mcr:<uid>}` for the distributor's notes about one MultiClusterResource, `{targets}` for
those about clusters.
Fields named *key* are `<namespace>/<name>` with an empty namespace for cluster-scoped objects;
neither part can contain a slash.

NATS KV: keys that a watcher may write start with the name of its cluster, and keys that only the
hub may write with `_hub` and that name, so that rights can be granted by prefix (rule S3). No key
contains the name of an object (rule B8).
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from fleetbus_proto.resources import Resource, is_resource_name
from fleetbus_proto.subjects import check_cluster

KV_BUCKET: Final = "FLEETBUS_STATE"
KV_CHECKPOINTS: Final = "*.checkpoint"
"""All checkpoints of all clusters."""
KV_GRANTS: Final = "*.grant"
"""Below it are the grants of all clusters, for the projector to follow (rule W7)."""
KV_ACCESS: Final = "_hub.*.access"
"""Below it are the addresses of all clusters, for the projector to read (rule W13)."""
KV_IDENTITY: Final = "_hub.*.identity"
"""Below it are the accepted UIDs of all clusters, for the projector to read (rule W13)."""
KV_WATCH: Final = "_hub.*.watch"
"""Below it are the watch specs of all clusters, for the projector to read."""
KV_RESYNC: Final = "_hub.*.resync"
"""Prefix of the resync requests of all clusters (rule W20)."""
KV_CONTROLLERS: Final = "_controllers"
"""Below it are the registrations of controllers."""
KV_POOL_MEMBERS: Final = "_pool.member"
"""Prefix of the records of the members of the watcher pool (rule W22)."""
KV_POOL_LEASES: Final = "_pool.lease"
"""Prefix of the leases of the clusters that the pool watches (rule W22)."""
_HUB: Final = "_hub"
"""Not a valid cluster name; what a watcher may only read is below it (rule S3)."""


def object_key(namespace: str, name: str) -> str:
    """The field of one object in every hash and index of its resource."""
    return f"{namespace}/{name}"


def split_object_key(key: str) -> tuple[str, str]:
    """Namespace and name of an object key."""
    namespace, _, name = key.partition("/")
    return namespace, name


# --- the snapshot -----------------------------------------------------------------------------


class SnapshotKeys:
    """Builds the keys of the snapshot, whose clusters are divided among shards.

    All keys of a cluster are in its shard. What is about many clusters, such as the feed, exists
    once in each shard. Every process must use the same number of shards: `generation` records it.

    Args:
        shards: how many there are; fixed when the snapshot is set up.
    """

    def __init__(self, shards: int = 1) -> None:
        self.shards = shards
        self._only = "fleetbus:{fleet:0}" if shards == 1 else ""

    def shard_of(self, cluster: str) -> int:
        """The shard of a cluster; this never changes, as other languages must compute it, too."""
        return crc32(cluster.encode()) % self.shards if self.shards > 1 else 0

    def _in(self, shard: int) -> str:
        return f"fleetbus:{{fleet:{shard}}}"

    def _of(self, cluster: str) -> str:
        return self._only or self._in(self.shard_of(cluster))

    def generation(self, shard: int) -> str:
        """STRING `<id>/<number of shards>`: of its content; missing if that was emptied (P13).

        Behind it a release that stores another format than 1 writes ` <format> <release>`.
        """
        return f"{self._in(shard)}:generation"

    def counter(self, shard: int) -> str:
        """STRING: the last version that the shard issued; each change gets the next one (A5).

        It is the shard modulo the number of shards, so a version belongs to one change. With one
        shard it is the resourceVersion of the snapshot.
        """
        return f"{self._in(shard)}:counter"

    def feed(self, shard: int) -> str:
        """STREAM, ids `<counter>-0`: {type, cluster, resource, key} of each visible change (A5)."""
        return f"{self._in(shard)}:feed"

    def feed_generation(self, shard: int) -> str:
        """STRING `<id>@<version>`: changes whenever positions in the feed become invalid (P13).

        Every version that the shard issued before is lower than this one.
        """
        return f"{self._in(shard)}:feed-generation"

    def clusters(self, shard: int) -> str:
        """HASH cluster → JSON: the fleet. Events of a cluster that is not in it are refused."""
        return f"{self._in(shard)}:clusters"

    def resources(self, cluster: str) -> str:
        """HASH `<group>/<plural>` → JSON {version, kind, namespaced, state, lastReceived, …}."""
        return f"{self._of(cluster)}:resources:{cluster}"

    def scopes(self, cluster: str) -> str:
        """SET of `<group>/<plural>|<scope>`: everything of this cluster that the snapshot holds."""
        return f"{self._of(cluster)}:scopes:{cluster}"

    def bodies(self, cluster: str, resource: str) -> str:
        """HASH key → the object's JSON bytes, as they are served; no field if there are none."""
        return f"{self._of(cluster)}:bodies:{cluster}:{resource}"

    def guards(self, cluster: str, resource: str) -> str:
        """HASH key → the order guard of an object or a tombstone, with its index terms (P2 to P5).

        The fields, in this order, separated by 0x1F; lists by 0x1E, parts of a mark by 0x1D:
        state (`L` live, `D` deleted, `S` deleted by leaving a selection), resourceVersion,
        incarnation number, counter, uid, why the body is incomplete, marks (scope, list
        resourceVersion, epoch id), labels as `<name>=<value>`, uids of owners.
        """
        return f"{self._of(cluster)}:guards:{cluster}:{resource}"

    def tombstones(self, cluster: str, resource: str) -> str:
        """HASH key → last JSON bytes of a deleted object, as long as they are kept (rule P3)."""
        return f"{self._of(cluster)}:tombstones:{cluster}:{resource}"

    def deletion_times(self, cluster: str, resource: str) -> str:
        """ZSET of the keys in `tombstones` → ms: since when the last JSON bytes are kept."""
        return f"{self._of(cluster)}:deletion-times:{cluster}:{resource}"

    def deleted(self, cluster: str, resource: str) -> str:
        """ZSET of the keys of tombstones, all scores 0, to walk them without their bodies."""
        return f"{self._of(cluster)}:deleted:{cluster}:{resource}"

    def order(self, cluster: str, resource: str) -> str:
        """ZSET of keys, all scores 0: the stable order of lists, and the namespace index."""
        return f"{self._of(cluster)}:order:{cluster}:{resource}"

    def rows(self, cluster: str, resource: str) -> tuple[str, ...]:
        """The keys of all rows, live and deleted, of a resource, in the order that scripts take."""
        return (
            self.bodies(cluster, resource),
            self.guards(cluster, resource),
            self.tombstones(cluster, resource),
            self.order(cluster, resource),
            self.deleted(cluster, resource),
            self.deletion_times(cluster, resource),
        )

    def labels(self, cluster: str, resource: str, label: str) -> str:
        """SET of keys with the label `<name>=<value>`; `=` alone: with unknown labels."""
        return f"{self._of(cluster)}:labels:{cluster}:{resource}:{label}"

    def owners(self, shard: int, uid: str) -> str:
        """SET of `<cluster>|<group>/<plural>|<key>` owned by this UID, by reference or by mark."""
        return f"{self._in(shard)}:owners:{uid}"

    def epochs(self, cluster: str, resource: str, scope: str) -> str:
        """HASH: the state of the epochs of one scope (P2, P4, P5).

        `incarnation` and its `uid`, `floor`, `completed` and `swept` as `<resourceVersion> <id>`,
        `removed` the same, of the last end that said so (W17); `version` and `kind` of the last
        end; per running epoch `count:<rank>` and `end:<rank>`.
        """
        return f"{self._of(cluster)}:epochs:{cluster}:{resource}:{scope}"

    def audits(self, cluster: str) -> str:
        """SET of `<group>/<plural>|<scope>` of the audits that are not evaluated yet (P15)."""
        return f"{self._of(cluster)}:audits:{cluster}"

    def audit(self, cluster: str, resource: str, scope: str) -> str:
        """HASH: the current audit of one scope (P15).

        `incarnation`, `version` and `id` of its rank, `page:<number>` of the pages that came,
        their number in `pages`, the `last` one's, `passed` once the low-water mark has; `suspects`,
        and of each `?<key>` → `<resourceVersion> <uid>` as listed, empty if it was not.
        """
        return f"{self._of(cluster)}:audit:{cluster}:{resource}:{scope}"

    def audits_due(self, shard: int) -> str:
        """ZSET `<cluster>|<group>/<plural>|<scope>` → ms: complete audits, by when they passed."""
        return f"{self._in(shard)}:audits-due"

    def clock(self, shard: int) -> str:
        """ZSET version → ms: which version was issued last by then, noted twice a minute (A9)."""
        return f"{self._in(shard)}:clock"

    def settled_version(self, shard: int) -> str:
        """STRING: objects at most as new as this version have not changed for long (A9).

        The state that a change of one of them replaces goes to `prior_states`.
        """
        return f"{self._in(shard)}:settled-version"

    def prior_states(self, shard: int) -> str:
        """LIST of replaced states until they are published, the oldest first (A9).

        The fields of each, separated by 0x1F: cluster, resource key, incarnation number, uid,
        resourceVersion, resourceVersion of the next state, object key, JSON bytes.
        """
        return f"{self._in(shard)}:prior-states"

    def store(self, shard: int) -> str:
        """HASH: `run`, the identity of the server that the feed belongs to (rule P13)."""
        return f"{self._in(shard)}:store"

    def offset_checkpoint(self, shard: int, consumer: str) -> str:
        """HASH of one durable consumer: up to where its effects are in this shard (B17, P11).

        `stream` (when it was made), `low` (its low-water sequence there), `floor` (its ack floor),
        `run` (the identity of the server that it applies to), `born` (an id, new when nothing was
        known of what came before), `breaks` (how often it missed messages, or found another
        stream).
        """
        return f"{self._in(shard)}:offset-checkpoint:{consumer}"

    def replay_claim(self, shard: int, consumer: str) -> str:
        """STRING that expires: the process that reads the stream again for this consumer (P11)."""
        return f"{self._in(shard)}:replay:{consumer}"


# --- a controller's queue ---------------------------------------------------------------------


def queue(controller: str, part: str) -> str:
    """One part of a controller's queue; the parts are listed in fleetbus.workqueue."""
    return f"fleetbus:{{q:{controller}}}:{part}"


def queue_format(controller: str) -> str:
    """STRING `<format> <release>`, by a release that stores another format; missing for 1."""
    return queue(controller, "format")


def queue_checkpoint(controller: str, durable: str) -> str:
    """HASH: up to where a controller's effects are in its queue, as `offset_checkpoint` (P11)."""
    return queue(controller, f"checkpoint:{durable}")


def queue_replay_claim(controller: str) -> str:
    """STRING that expires: the process that reads the stream again for a controller (P11)."""
    return queue(controller, "replay")


def deletion_budget() -> str:
    """ZSET `<owner's uid>|<cluster>|<object>` → ms: deletions without an edit, granted (D8)."""
    return "fleetbus:{deletions}:budget"


def missing_objects(uid: str) -> str:
    """SET of `<cluster> <token>`: where objects, or their state in the status, are missing."""
    return f"fleetbus:{{mcr:{uid}}}:missing"


def status_written(uid: str) -> str:
    """STRING, empty: the status of a MultiClusterResource was just written (D11); it expires."""
    return f"fleetbus:{{mcr:{uid}}}:written"


def distributor_settings() -> str:
    """HASH setting → value: of the running distributor, for `fleetbus plan` (D25); it expires."""
    return "fleetbus:{targets}:settings"


def cooldowns() -> str:
    """HASH cluster → JSON: targets that hang, as the distributors tell each other (D11)."""
    return "fleetbus:{targets}:cooldowns"


# --- the key-value bucket ---------------------------------------------------------------------


def kv_cluster(key: str) -> str:
    """The cluster that a key of the hub is about."""
    return key.split(".")[1]


def kv_incarnation(cluster: str) -> str:
    """{uid, number}: the one owner of the incarnation number (rule W23)."""
    return f"{cluster}.incarnation"


def kv_message_key(cluster: str) -> str:
    """The secret for the ids of its messages, created by the first publisher (rule B3)."""
    return f"{cluster}.message-key"


def kv_accepted(cluster: str) -> str:
    """The UID to which an operator consented, and instead of which one (rule W13)."""
    return f"{_HUB}.{cluster}.accepted"


def kv_identity(cluster: str) -> str:
    """The accepted UID of kube-system, as the projector keeps it (rule W13)."""
    return f"{_HUB}.{cluster}.identity.uid"


def kv_refused(cluster: str) -> str:
    """The UID of another cluster that answers under this name, unless it was accepted (W13)."""
    return f"{cluster}.refused"


def kv_access(cluster: str) -> str:
    """The API server's address for which the projector has last consented (rule W13)."""
    return f"{_HUB}.{cluster}.access.server"


def kv_watch_spec(cluster: str) -> str:
    """Its watch spec: what to watch, and whether it is suspended; written by the projector."""
    return f"{_HUB}.{cluster}.watch.spec"


def kv_checkpoint(cluster: str, group: str, resource: str, scope: str) -> str:
    """Where a restarted watcher resumes (rule W5)."""
    return f"{cluster}.checkpoint.{_token(group)}.{resource}.{scope or 'all'}"


def kv_checkpoint_resource(key: str) -> str:
    """The key of the resource that a checkpoint is about, like `core/pods`."""
    _, _, group, resource, _ = key.split(".")
    return f"{group.replace('_', '.')}/{resource}"


def kv_epoch(cluster: str, group: str, resource: str) -> str:
    """The last claimed epoch id (rule W7)."""
    return f"{cluster}.epoch.{_token(group)}.{resource}"


def kv_grant(cluster: str, group: str, resource: str) -> str:
    """Requests to list a resource, with the projector's answers (rule W7)."""
    return f"{cluster}.grant.{_token(group)}.{resource}"


def split_kv_grant(key: str) -> tuple[str, str, str]:
    """Cluster, group and resource of such a key.

    Raises:
        ValueError: it is another key, or a malformed one.
    """
    cluster, kind, token, resource = key.split(".")
    group = token.replace("_", ".")
    if kind != "grant" or not is_resource_name(group, resource):
        raise ValueError(f"{key!r} is not the key of a grant")
    return check_cluster(cluster), group, resource


def kv_resync(cluster: str, group: str, resource: str) -> str:
    """The resync request of a resource, written by the projector (rule W20)."""
    return f"{_HUB}.{cluster}.resync.{_token(group)}.{resource}"


def split_kv_resync(key: str) -> tuple[str, Resource]:
    """Cluster and resource of such a key; it names no version.

    Raises:
        ValueError: it is another key.
    """
    hub, cluster, kind, token, plural = key.split(".")
    group = token.replace("_", ".")
    if (hub, kind) != (_HUB, "resync") or not is_resource_name(group, plural):
        raise ValueError(f"{key!r} is not the key of a resync request")
    return check_cluster(cluster), Resource(group, "", plural)


def kv_audit(cluster: str, group: str, resource: str, scope: str) -> str:
    """The last audit that a watcher began (rule W18)."""
    return f"{cluster}.audit.{_token(group)}.{resource}.{scope or 'all'}"


def kv_audit_request(cluster: str) -> str:
    """The last request for an audit of the whole cluster (rule W18)."""
    return f"{_HUB}.{cluster}.audit-request"


def kv_types(cluster: str) -> str:
    """The watched types that a CRD defines: their removal can be proven (rule W17)."""
    return f"{cluster}.types"


def kv_reader(controller: str, group: str) -> str:
    """A controller in one reader group: who else is in it, and the durable of all (rule B12)."""
    return f"{KV_CONTROLLERS}.{controller}.{group}"


def kv_pool_member(member: str) -> str:
    """The record of one member of the watcher pool, renewed while it lives (rule W22)."""
    return f"{KV_POOL_MEMBERS}.{member}"


def kv_pool_lease(cluster: str) -> str:
    """The lease of a cluster: the pool member that watches it (rule W22)."""
    return f"{KV_POOL_LEASES}.{cluster}"


def _token(group: str) -> str:
    """A group as one token: it may contain dots, which separate tokens, but no underscore."""
    return group.replace(".", "_")
