"""Every credential of the chart with every subject, key, API request and store command.

The columns come from the contract and from the servers themselves, so that a new subject, key, API
or command without an entry here fails (rules S3, S4, S5 and S8). The hub's API server and the query
API have their own: `test_components_with_their_rights.py`, `tests/query_api/test_access_matrix.py`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from redis.asyncio import Redis

from fleetbus_devfleet.processes.servers import find_nats_server
from fleetbus_proto import keys, subjects
from fleetbus_proto.keys import KV_BUCKET, SnapshotKeys
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, PRIOR_STREAM, STREAM
from support.api.rendered_chart import SEED, VALUES, render, secret
from support.servers.nats_refusals import refusals
from support.servers.rendered_servers import rendered_nats, store_administrator

FLEET = {
    **VALUES["everything"],
    "credentials": {"seed": SEED},
    "agents": {"enabled": True},
}
OWN, OTHER = "eu1", "mars"
GUESTS = [
    *("watcher-hub", "watcher-eu1", "watcher-us1", "subscriber-audit", "subscriber-other"),
    *("subscriber-pager", "voter-ci"),
]
HUB = [
    *("pool", "projector", "distributor", "archiver", "query-api"),
    *("reconciler-shop", "reconciler-mail"),
]
USERS = [*GUESTS, *HUB]
Names = set[str]
P, POOL, Q = "projector", "pool", "query-api"

# --- the contract: who may publish to a subject or write a key of the cluster eu1, and of mars

_WATCHERS: Final[tuple[Names, Names]] = ({"watcher-eu1", POOL}, {POOL})
_AND_PROJECTOR: Final[tuple[Names, Names]] = ({"watcher-eu1", POOL, P}, {POOL, P})
_PROJECTOR: Final[tuple[Names, Names]] = ({P}, {P})
_NOBODY: Final[tuple[Names, Names]] = (set(), set())
_POOL: Final[tuple[Names, Names]] = ({POOL, P}, {POOL, P})
SUBJECTS: Final = {
    "event_subject": _AND_PROJECTOR,  # the projector publishes what a removed type had
    "epochs_subject": _WATCHERS,
    "status_subject": _WATCHERS,
    "control_subject": _PROJECTOR,
    "prior_subject": _PROJECTOR,
    # Of agents, who have no users here: see test_attacks_of_agents.py.
    "answers_subject": _NOBODY,
    "registration_subject": _NOBODY,
}
NO_SUBJECTS: Final = {
    *("votes_prefix", "vote_subject", "parse_vote_subject"),  # VOTES
    *("distribution_subject", "distribution_filter"),  # DISTRIBUTION
    *("encode_token", "decode_token", "check_cluster", "events_filter", "parse_event_subject"),
    *("events_of_object", "deletions_filter"),
    *("answers_filter", "parse_answers_subject", "is_call_id", "is_instance"),
}
VOTES: Final = {"shop": {"voter-ci"}, "mail": set[str]()}
"""Namespace of a MultiClusterResource → who may vote on its rollouts."""
CALLERS: Final = {P, "distributor", "reconciler-shop", "reconciler-mail"}
"""Who may call the API server of a cluster through its agent."""
DISTRIBUTION: Final = {"distributor"}
"""Who may publish what became of a MultiClusterResource."""
KV_KEYS: Final = {
    "kv_incarnation": _AND_PROJECTOR,
    "kv_message_key": _AND_PROJECTOR,
    "kv_refused": _AND_PROJECTOR,
    "kv_checkpoint": _AND_PROJECTOR,
    "kv_epoch": _AND_PROJECTOR,
    "kv_grant": _AND_PROJECTOR,
    "kv_audit": _AND_PROJECTOR,
    "kv_types": _AND_PROJECTOR,
    "kv_accepted": _PROJECTOR,
    "kv_identity": _PROJECTOR,
    "kv_access": _PROJECTOR,
    "kv_watch_spec": _PROJECTOR,
    "kv_audit_request": _PROJECTOR,
    "kv_resync": _PROJECTOR,
    "kv_reader": _PROJECTOR,  # of controllers named eu1 and mars, which there are not
    "kv_pool_member": _POOL,
    "kv_pool_lease": _POOL,
}
SNAPSHOT_OR_QUEUE: Final = {"queue", "queue_checkpoint", "queue_format", "queue_replay_claim"}
DISTRIBUTOR_ONLY: Final = {
    "deletion_budget",
    "missing_objects",
    "status_written",
    "cooldowns",
    "distributor_settings",
}
NO_KEYS: Final = {
    *("kv_cluster", "kv_checkpoint_resource", "object_key"),
    *("split_kv_grant", "split_kv_resync", "split_object_key"),
}

# --- JetStream: who may send which request about the stream of events or the bucket

API: Final[dict[str, Names]] = {
    "$JS.API.INFO": {P},
    "$JS.API.STREAM.INFO.*": {
        *(P, Q, "distributor", "archiver", "reconciler-shop", "reconciler-mail"),
    },
    "$JS.API.STREAM.CREATE.*": {P},
    "$JS.API.CONSUMER.CREATE.*.>": {P},
    "$JS.API.CONSUMER.CREATE.*.*.*": {P},
    "$JS.API.CONSUMER.INFO.*.*": {P},
    "$JS.API.CONSUMER.DELETE.*.*": {P},
    "$JS.API.DIRECT.GET.*": {P, Q},
    "$JS.API.DIRECT.GET.*.*": {P},
}
DISTRIBUTION_API: Final[dict[str, Names]] = {
    "$JS.API.STREAM.INFO.*": {P},
    "$JS.API.STREAM.CREATE.*": {P},
    "$JS.API.CONSUMER.CREATE.*.>": {P},
    "$JS.API.CONSUMER.CREATE.*.*.*": {P},
    "$JS.API.CONSUMER.INFO.*.*": {P},
    "$JS.API.DIRECT.GET.*": {Q},
}
PRIOR_API: Final[dict[str, Names]] = {
    "$JS.API.STREAM.INFO.*": {P},
    "$JS.API.STREAM.CREATE.*": {P},
    "$JS.API.DIRECT.GET.*": {Q},
}
BUCKET_API: Final = {
    "$JS.API.STREAM.INFO.*": {P},
    "$JS.API.CONSUMER.CREATE.*.>": set[str](),
    "$JS.API.CONSUMER.CREATE.*.*.*": set[str](),
    "$JS.API.CONSUMER.INFO.*.*": set[str](),
    "$JS.API.CONSUMER.DELETE.*.*": set[str](),
    "$JS.API.DIRECT.GET.*": {P, POOL},
    "$JS.API.DIRECT.GET.*.*": {P, POOL},
}
_PATTERN: Final = re.compile(rb"\$JS\.API(?:\.[A-Z]+)+(?:\.(?:\*|>|%s))+")
_WITHOUT_NAMES: Final = [
    *("INFO", "STREAM.NAMES", "STREAM.LIST", "META.LEADER.STEPDOWN", "META.RESCUE"),
    *("SERVER.REMOVE", "SERVER.EVACUATE", "ACCOUNT.STREAM.CANCEL", "STREAM.CANCEL"),
]

# --- Valkey

STORE_USERS: Final = ["projector", "distributor", "query-api", "reconciler-shop", "reconciler-mail"]
GRANTED_IN_FORBIDDEN: Final = {"info"}
"""Commands of @admin and @dangerous: the services read which policy and persistence there is (rule
P16)."""


def functions(module: ModuleType) -> dict[str, Any]:
    members = inspect.getmembers(module, inspect.isfunction)
    return {n: f for n, f in members if f.__module__ == module.__name__ and not n.startswith("_")}


def example(function: Any, cluster: str) -> str:
    """The key or subject of a cluster: every other argument has a usual value."""
    words = "group=core resource=pods namespace=a name=b verb=added scope= replica=r1 uid=u label=l"
    usual: dict[str, Any] = {}
    for word in words.split():
        name, _, value = word.partition("=")
        usual[name] = value
    usual |= dict.fromkeys(("cluster", "controller", "member"), cluster)
    usual |= {"call": "distributor.1a.1", "instance": ""}
    usual |= {"shard": 0, "consumer": "c", "part": "ready", "durable": "d"}
    names = inspect.signature(function).parameters
    text: Any = function(**{name: usual[name] for name in names if name != "self"})
    return cast("str", text)


def test_every_subject_and_key_of_the_contract_has_an_entry():
    assert functions(subjects).keys() == SUBJECTS.keys() | NO_SUBJECTS
    assert functions(keys).keys() == (
        KV_KEYS.keys() | SNAPSHOT_OR_QUEUE | DISTRIBUTOR_ONLY | NO_KEYS
    )


def contract() -> Iterator[tuple[str, Names]]:
    """Each subject that stands for a subject or a key, and who may publish to it."""
    for index, cluster in enumerate((OWN, OTHER)):
        for name, allowed in SUBJECTS.items():
            yield example(getattr(subjects, name), cluster), allowed[index]
        for name, allowed in KV_KEYS.items():
            key = example(getattr(keys, name), cluster)
            yield f"$KV.{KV_BUCKET}.{key}", allowed[index]
    for namespace, allowed in VOTES.items():
        prefix = subjects.votes_prefix(namespace, "web", "1-a")
        yield subjects.vote_subject(prefix, "canary", "tests"), allowed
    yield subjects.api_subject(OWN), CALLERS
    yield subjects.api_subject(OTHER, subjects.EVERY_AGENT), CALLERS
    for cluster in (OWN, ""):
        verb = subjects.DistributionVerb.APPLIED
        yield subjects.distribution_subject("shop", "web", cluster, verb), DISTRIBUTION


def requests() -> Iterator[tuple[str, Names]]:
    """Each request of the JetStream API that the server knows, and who may send it."""
    names_of_api = _PATTERN.findall(Path(find_nats_server()).read_bytes())
    patterns = {raw.decode().replace("%s", "*") for raw in names_of_api}
    patterns |= {f"$JS.API.{suffix}" for suffix in _WITHOUT_NAMES}
    assert len(patterns) > 35, "the binary of the server has other texts than expected"
    assert API.keys() | BUCKET_API.keys() <= patterns
    streams: list[tuple[str, dict[str, Names]]] = [
        (STREAM, API),
        (DISTRIBUTION_STREAM, DISTRIBUTION_API),
        (PRIOR_STREAM, PRIOR_API),
        (f"KV_{KV_BUCKET}", API | BUCKET_API),
        ("any", {}),
    ]
    for stream, allowed in streams:
        for pattern in patterns:
            if "*" in pattern or stream == STREAM:
                subject = pattern.replace("*", stream, 1).replace("*", "any").replace(">", "any")
                yield subject, allowed.get(pattern, set[str]())


async def test_s3_s4_s5_every_credential_and_every_subject(tmp_path: Path):
    table = dict([*contract(), *requests()])
    wrong: list[str] = []
    async with rendered_nats(FLEET, tmp_path) as server:
        for user in USERS:
            refused = await refusals(server, user, table)
            for subject, allowed in table.items():
                is_refused = f"publish {subject}" in refused
                if is_refused == (user in allowed):
                    wrong.append(f"{user}: {subject}: refused={is_refused}")
    assert "\n".join(wrong) == ""


# --- Valkey: a server with the rendered users and an administrator, which asks what they may


def snapshot_keys() -> dict[str, str]:
    members = inspect.getmembers(SnapshotKeys, inspect.isfunction)
    methods = {n: f for n, f in members if not n.startswith("_") and n not in ("shard_of", "rows")}
    return {name: example(getattr(SnapshotKeys(), name), OWN) for name in methods}


def written_by() -> Iterator[tuple[str, Names]]:
    """Each family of keys, and who may write it."""
    for key in snapshot_keys().values():
        yield key, set(STORE_USERS) - {"query-api"}
    for controller, user in (("shop", "reconciler-shop"), ("distributor", "distributor")):
        for name in SNAPSHOT_OR_QUEUE:
            yield example(getattr(keys, name), controller), {user}
    for name in DISTRIBUTOR_ONLY:
        yield example(getattr(keys, name), OWN), {"distributor"}
    yield example(keys.queue, "sho"), set()
    yield "fleetbus:{q:shop}x:ready", set()
    yield "other", set()


async def dry_run(admin: Redis, user: str, *command: str) -> bool:
    """Whether the user may send the command."""
    return await cast("Any", admin).execute_command("ACL", "DRYRUN", user, *command) == "OK"


async def test_s8_every_store_user_and_every_key_and_command(tmp_path: Path):
    wrong: list[str] = []
    users = secret(render(FLEET), "fb-fleetbus-valkey-config")["users.acl"]
    async with store_administrator(users, tmp_path) as admin:
        for user in STORE_USERS:
            for key, allowed in written_by():
                if await dry_run(admin, user, "SADD", key, "x") != (user in allowed):
                    wrong.append(f"{user}: SADD {key}")
            wrong += [f"{user}: {command}" for command in await forbidden_commands(admin, user)]
    assert "\n".join(wrong) == ""


async def forbidden_commands(admin: Redis, user: str) -> list[str]:
    """The commands of @admin and @dangerous that a user may send, but for the granted ones."""
    ask = cast("Any", admin).execute_command
    names: set[str] = {raw for c in ("admin", "dangerous") for raw in await ask("ACL CAT", c)}
    assert len(names) > 40
    commands_found: list[str] = []
    for name in sorted(names - GRANTED_IN_FORBIDDEN):
        words = name.split("|")
        ((_, arity, *_),) = await ask("COMMAND INFO", name)
        words += ["1"] * (abs(arity) - len(words))
        if await dry_run(admin, user, *words):
            commands_found.append(name)
    return commands_found
