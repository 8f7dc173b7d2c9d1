"""Finds keys of ours that another program wrote, and names them in errors and in the log.

The server only says that some key of a command or a script has the wrong type. No retry helps until
somebody repairs it, and nobody can without the name of the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

import structlog
from redis.exceptions import RedisError, ResponseError

from fleetbus.process.log_once import LogOnce

log = structlog.get_logger()

_OURS: Final = "fleetbus:{"
_FLEET: Final = "fleet:"
"""Prefix of the keys of the shards of the snapshot."""
_SNAPSHOT: Final = {
    **dict.fromkeys(("generation", "counter", "feed-generation", "replay"), "string"),
    "settled-version": "string",
    **dict.fromkeys(("clusters", "resources", "bodies", "guards", "tombstones"), "hash"),
    **dict.fromkeys(("epochs", "audit", "store", "offset-checkpoint"), "hash"),
    **dict.fromkeys(("scopes", "labels", "owners", "audits"), "set"),
    **dict.fromkeys(("deleted", "deletion-times", "order", "audits-due", "clock"), "zset"),
    "prior-states": "list",
    "feed": "stream",
}
"""Types of the snapshot's keys by the word after the prefix; see `fleetbus_proto.keys`."""
_QUEUE: Final = {
    **dict.fromkeys(("code", "replay", "format"), "string"),
    **dict.fromkeys(("dirty", "credits", "triggers", "processing", "takes", "traces"), "hash"),
    **dict.fromkeys(
        ("notes", "attempts", "suspects", "reclaims", "outages", "liveness", "clock", "causes"),
        "hash",
    ),
    **dict.fromkeys(("ready", "turns", "delayed", "leases", "noted", "quarantine"), "zset"),
    "unsynced": "zset",
    **dict.fromkeys(("breakers", "last-run-times"), "zset"),
    **dict.fromkeys(("last-runs", "checkpoint"), "hash"),
    "record": "set",
}
"""Types of a queue's keys; see `fleetbus.workqueue`."""
_DISTRIBUTOR: Final = {
    "deletions": {"budget": "zset"},
    "targets": {"cooldowns": "hash", "settings": "hash"},
}
"""Keys of the distributor for the whole fleet: the budget of deletions, targets that hang."""
_RESOURCE: Final = "mcr:"
_RESOURCE_KEYS: Final = {"missing": "set", "written": "string"}
"""Keys of the distributor, for one MultiClusterResource each."""
_SEARCHES: Final = (
    *((f"{_OURS}*", kind) for kind in ("string", "list", "hash", "zset", "stream")),
    (f"{_OURS}q:*", "set"),
)
"""Searches when no key of the command has the wrong type: scripts also build key names, those of
sets in the snapshot, perhaps one per label, and of sorted sets in a queue."""
_COUNT: Final = 1000
_SEARCH_WITHIN: Final = 10.0
_SHOWN: Final = 3
_LETTERS: Final = 300
_HINT: Final = (
    "another program wrote it: keep that program out of this database, and rename or delete the"
    " key; fleetbus then continues by itself. If the key replaced one of fleetbus, empty the"
    " database: fleetbus rebuilds it"
)

Ask = Callable[[Sequence[tuple[Any, ...]]], Awaitable[Sequence[Any]]]
"""Sends commands in one write and returns the answer of each."""


class ForeignKeyError(ResponseError):
    """A key of ours has the wrong type; the message names it. Nothing was executed."""


class _ForeignKey(NamedTuple):
    key: str
    found: str
    expected: str


def type_of(key: str) -> str:
    """The type of a key of ours, as named by the command `TYPE`; empty for other keys."""
    owner, _, suffix = key.removeprefix(_OURS).partition("}:")
    if not key.startswith(_OURS) or not suffix:
        return ""
    word, colon, _ = suffix.partition(":")
    if owner.startswith(_FLEET):
        return _SNAPSHOT.get(word, "")
    if of_distributor := _DISTRIBUTOR.get(owner):
        return of_distributor.get(word, "")
    if owner.startswith(_RESOURCE):
        return _RESOURCE_KEYS.get(word, "")
    if word == "record" and colon:  # one per resource, beside the index of them
        return "hash"
    return _QUEUE.get(word, "")


def is_wrong_type(error: object) -> bool:
    """Whether this is the server's error about a key of the wrong type."""
    return isinstance(error, ResponseError) and "WRONGTYPE" in str(error)


class ForeignKeys:
    """Finds the keys of the wrong type, and logs them.

    Args:
        ask: sends commands; not through a client that calls `explain` again.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: list[_ForeignKey] = []
        self._searches = LogOnce()
        self._log_once = LogOnce()
        self._turn = asyncio.Lock()

    async def explain(self, words: Iterable[Any], error: Exception) -> Exception:
        """Return the error to raise for a refused command; `error` itself if no key is found.

        Args:
            words: of the command, or of all commands in its transaction.
            error: one for which `is_wrong_type` is true.
        """
        async with self._turn:
            try:
                foreign_keys = await self._find(words)
            except (RedisError, OSError, TimeoutError):
                return error  # the store is away now: the next attempt checks again
        if not foreign_keys:
            return error
        for foreign in foreign_keys[:_SHOWN]:
            if self._log_once.should_log(key=foreign.key):
                kinds = {"found": foreign.found, "expected": foreign.expected}
                log.error("foreign_key_found", key=foreign.key[:_LETTERS], **kinds, hint=_HINT)
        explained = ForeignKeyError(_describe(foreign_keys))
        explained.__cause__ = error
        return explained

    async def _find(self, words: Iterable[Any]) -> list[_ForeignKey]:
        """Check the keys of the command and those known; search the store if none is wrong."""
        named = [text for word in words if (text := _text(word)).startswith(_OURS)]
        known_keys = [foreign.key for foreign in self._known]
        foreign_keys = await self._check(dict.fromkeys([*known_keys, *named]))
        if not foreign_keys and self._searches.should_log():
            async with asyncio.timeout(_SEARCH_WITHIN):
                foreign_keys = await self._search()
        for foreign in self._known:
            if foreign not in foreign_keys:
                self._log_once.reset(foreign.key)
        self._known = foreign_keys[:_SHOWN]
        return foreign_keys

    async def _check(self, keys: Iterable[str]) -> list[_ForeignKey]:
        expected = {key: kind for key in keys if (kind := type_of(key))}
        if not expected:
            return []
        answers = await self._ask([("TYPE", key) for key in expected])
        pairs = zip(expected.items(), answers, strict=True)
        return [
            _ForeignKey(key, _text(answer), kind)
            for (key, kind), answer in pairs
            if _text(answer) not in (kind, "none")
        ]

    async def _search(self) -> list[_ForeignKey]:
        foreign_keys: list[_ForeignKey] = []
        for pattern, kind in _SEARCHES:
            cursor = 0
            while True:
                scan = ("SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT, "TYPE", kind)
                [answer] = await self._ask([scan])
                cursor, keys = cast("tuple[int, list[bytes]]", answer)
                wrong = (text for key in keys if type_of(text := _text(key)) not in ("", kind))
                foreign_keys += [_ForeignKey(key, kind, type_of(key)) for key in wrong]
                if not cursor:
                    break
        return foreign_keys


def _describe(foreign_keys: Sequence[_ForeignKey]) -> str:
    texts = [
        f"the key {key[:_LETTERS]} is a {kind}, not a {expected}"
        for key, kind, expected in foreign_keys
    ]
    more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{'; '.join(texts[:_SHOWN])}{more}: another program wrote it"


def _text(word: object) -> str:
    if isinstance(word, bytes):
        return word.decode(errors="replace")
    return word if isinstance(word, str) else ""
