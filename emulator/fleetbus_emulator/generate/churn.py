"""The changes that go on in a cluster: updates, creates and deletes, from a seed.

Few objects change often and most seldom (Zipf). Half of what is created has the name of something
that was deleted: another object under the same name, which is what careless caches mistake.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver import ApiError
from fleetbus_emulator.generate import changes
from fleetbus_emulator.generate.changes import Verb, Write

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver import Cluster

JsonObject = dict[str, Any]
Key = tuple[str, str]
RECREATED_SHARE = 0.5
REMEMBERED = 200  # deleted objects of a type that may come back
ATTEMPTS = 200
TURN_SECONDS = 0.02
SYSTEM_PREFIX = "kube-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The mix of verbs; only the proportions count.

    Raises:
        ValueError: One is negative, or all are 0.
    """

    update: float = 80
    create: float = 10
    delete: float = 10

    def __post_init__(self) -> None:
        shares = (self.update, self.create, self.delete)
        if min(shares) < 0 or not sum(shares):
            raise ValueError(f"a mix has no negative shares, and one above 0: {self}")


class _Living:
    """The objects of a type; those at the front are chosen most often."""

    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys
        self._places = {key: place for place, key in enumerate(keys)}

    def __len__(self) -> int:
        return len(self._keys)

    def pick(self, random: Random) -> Key:
        """One of them: the n-th with a probability of about 1 / n."""
        return self._keys[int(len(self._keys) ** random.random()) - 1]

    def add(self, key: Key) -> None:
        if key not in self._places:
            self._places[key] = len(self._keys)
            self._keys.append(key)

    def discard(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is None:
            return
        last = self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._places[last] = place


class Churn:
    """Changes a cluster.

    Args:
        cluster: The cluster, filled or not.
        seed: Chooses what happens; the same on equal clusters makes the same writes in the same
            order. Uids of what is created are the cluster's to choose.
        mix: How often each verb is chosen.
        only: The types to change, out of `changes.TYPES`; empty for all that are served.
        canary: A string in every Secret that it creates.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        seed: int = 0,
        mix: Mix | None = None,
        only: tuple[str, ...] = (),
        canary: str = "",
    ) -> None:
        unknown = sorted(set(only).difference(changes.TYPES))
        if unknown:
            raise ValueError(f"only: {unknown} are none of {', '.join(changes.TYPES)}")
        mix = mix or Mix()
        self.cluster = cluster
        self._random = Random(f"churn/{seed}/{cluster.name}")  # noqa: S311 - no secrets
        self._verbs = (Verb.UPDATE, Verb.CREATE, Verb.DELETE)
        self._weights = (mix.update, mix.create, mix.delete)
        self._types = [gvr for gvr in only or changes.TYPES if cluster.serves(gvr)]
        self._living = {gvr: _Living(self._shuffled(gvr)) for gvr in self._types}
        self._deleted: dict[str, deque[JsonObject]] = {
            gvr: deque(maxlen=REMEMBERED) for gvr in self._types
        }
        namespaces = [name for _, name in cluster.names("v1/namespaces")]
        self._namespaces = [n for n in namespaces if not n.startswith(SYSTEM_PREFIX)]
        self._changes = changes.Changes(self._random, canary)

    def _shuffled(self, gvr: str) -> list[Key]:
        keys = self.cluster.names(gvr)
        self._random.shuffle(keys)
        return keys

    # one after the other ------------------------------------------------------------------------

    def plan(self) -> Write:
        """The next write, as data; for clients that send it themselves.

        Raises:
            LookupError: There is nothing to change and nothing that could be created.
        """
        for _ in range(ATTEMPTS):
            verb = self._random.choices(self._verbs, self._weights)[0]
            write = self._create() if verb is Verb.CREATE else self._change(verb)
            if write is not None:
                return write
        raise LookupError(f"cluster {self.cluster.name}: there is nothing to change")

    def step(self) -> Write:
        """Make the next write, and return it; what others made impossible is passed over.

        Raises:
            LookupError: There is nothing to change.
            ApiError: One write after the other is refused; this is the last one's refusal.
        """
        for _ in range(ATTEMPTS):
            write = self.plan()
            # Others may have created or deleted the object, or its namespace is terminating.
            with contextlib.suppress(ApiError):
                write.perform(self.cluster)
                return write
        write = self.plan()
        write.perform(self.cluster)
        return write

    def run(self, steps: int) -> Counter[Verb]:
        """Make so many writes at once; how many of each verb."""
        return Counter(self.step().verb for _ in range(steps))

    async def drive(self, per_second: float) -> None:
        """Make so many writes in a second until cancelled.

        Raises:
            ValueError: The rate is not above 0.
        """
        if per_second <= 0:
            raise ValueError(f"the rate is above 0, not {per_second}")
        clock = asyncio.get_running_loop().time
        begun, count = clock(), 0
        while True:
            turn_ends = clock() + TURN_SECONDS
            while count < (clock() - begun) * per_second and clock() < turn_ends:
                self.step()
                count += 1
            await asyncio.sleep(max(0.0, min(TURN_SECONDS, count / per_second - (clock() - begun))))

    # choosing -----------------------------------------------------------------------------------

    def _change(self, verb: Verb) -> Write | None:
        """An update or a delete of an existing object; None if it was deleted meanwhile."""
        able = changes.UPDATED if verb is Verb.UPDATE else changes.DELETED
        weights = {g: w for g, w in able.items() if g in self._living and len(self._living[g])}
        if not weights:
            return self._create()
        gvr = self._random.choices(list(weights), list(weights.values()))[0]
        living = self._living[gvr]
        namespace, name = key = living.pick(self._random)
        obj = self.cluster.get(gvr, namespace, name)
        if obj is None or "deletionTimestamp" in obj["metadata"]:
            living.discard(key)
            return None
        if verb is Verb.UPDATE:
            return self._changes.update(gvr, obj)
        living.discard(key)
        self._deleted[gvr].append(obj)
        return Write(Verb.DELETE, gvr, namespace, name)

    def _create(self) -> Write | None:
        weights = {g: w for g, w in changes.CREATED.items() if g in self._living}
        if not weights:
            return None
        gvr = self._random.choices(list(weights), list(weights.values()))[0]
        deleted = self._deleted[gvr]
        if deleted and self._random.random() < RECREATED_SHARE:
            index = self._random.randrange(len(deleted))
            obj = changes.recreated(deleted[index])
            del deleted[index]
        else:
            obj = self._changes.new(gvr, self._random.choice(self._namespaces))
        meta = obj["metadata"]
        self._living[gvr].add((meta["namespace"], meta["name"]))
        return Write(Verb.CREATE, gvr, meta["namespace"], meta["name"], obj)
