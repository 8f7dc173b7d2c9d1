"""Names, uids, addresses and dates: everything that differs between generated objects.

All of it comes from one seeded source in a fixed order, so that a seed names its objects.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.types.object_meta import SUFFIX_ALPHABET
from fleetbus_emulator.generate.objects.words import ROLES, STAGES, STORES, SUBJECTS, TEAMS, Zipf

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from random import Random

JsonObject = dict[str, Any]
SHORTEST_AGE = timedelta(hours=2)
LONGEST_AGE = timedelta(days=400)
POD_NETWORK = 10 << 24 | 128 << 16  # 10.128.0.0/9, away from that of the simulated kubelet
NODE_NETWORK = 172 << 24 | 20 << 16
SERVICE_NETWORK = 10 << 24 | 96 << 16


class Naming:
    """Allocates unique values.

    Args:
        random: The seeded source.
        taken: Names of what exists already.
        now: Ages are counted from here back.
    """

    def __init__(self, random: Random, taken: Collection[str], now: datetime) -> None:
        self.random = random
        self._taken = set(taken)
        self._now = now.astimezone(UTC)
        self._addresses = {POD_NETWORK: 0, NODE_NETWORK: 0, SERVICE_NETWORK: 0}
        self._subjects, self._roles, self._stages = Zipf(SUBJECTS, 0.6), Zipf(ROLES), Zipf(STAGES)

    # names --------------------------------------------------------------------------------------

    def application(self) -> str:
        """Like `checkout-api`."""
        return self.unique(f"{self._subjects.pick(self.random)}-{self._roles.pick(self.random)}")

    def store(self) -> str:
        """Like `orders-postgres`, for what keeps data."""
        return self.unique(f"{self._subjects.pick(self.random)}-{self.random.choice(STORES)}")

    def namespace(self) -> str:
        """Like `payments-staging` or `team-growth`."""
        if self.random.random() < 0.2:  # noqa: PLR2004 - a fifth is named for a team
            return self.unique(f"team-{self.random.choice(TEAMS)}")
        subject, stage = self._subjects.pick(self.random), self._stages.pick(self.random)
        return self.unique(subject if stage == "prod" else f"{subject}-{stage}")

    def unique(self, preferred: str) -> str:
        """The name, with a number behind it if it is taken."""
        name, number = preferred, 1
        while name in self._taken:
            number += 1
            name = f"{preferred}-{number}"
        self._taken.add(name)
        return name

    def suffix(self, length: int = 5) -> str:
        """Letters and digits as behind generateName."""
        return "".join(self.random.choices(SUFFIX_ALPHABET, k=length))

    def suffixes(self, length: int = 5) -> Iterator[str]:
        """Suffixes without end, all different: for the children of one owner."""
        used: set[str] = set()
        while True:
            suffix = self.suffix(length)
            if suffix not in used:
                used.add(suffix)
                yield suffix

    def digest(self) -> str:
        """64 hexadecimal digits."""
        return f"{self.random.getrandbits(256):064x}"

    def uid(self) -> str:
        """A random uid, version 4."""
        text = f"{self.random.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"

    # addresses ----------------------------------------------------------------------------------

    def address(self, network: int) -> str:
        """The next free address of a network."""
        self._addresses[network] += 1
        number = network + self._addresses[network]
        return f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"

    # dates --------------------------------------------------------------------------------------

    def age(self) -> float:
        """An age in seconds: as many objects of a few hours as of many months."""
        low, high = (math.log(age.total_seconds()) for age in (SHORTEST_AGE, LONGEST_AGE))
        return math.exp(self.random.uniform(low, high))

    def ago(self, seconds: float) -> str:
        """The time so long ago, as objects have it."""
        return (self._now - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def metadata(
        self, name: str, namespace: str, age: float, labels: JsonObject | None = None, **more: Any
    ) -> JsonObject:
        """The metadata of an object of some age in seconds; an empty namespace for none."""
        placed = {"namespace": namespace} if namespace else {}
        meta: JsonObject = {
            "name": name,
            **placed,
            "uid": self.uid(),
            "creationTimestamp": self.ago(age),
        }
        return {**meta, **({"labels": labels} if labels else {}), **more}
