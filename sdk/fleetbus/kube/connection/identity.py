"""Which cluster is behind an address (rule W13).

A rebuilt cluster, a wrong kubeconfig or a confused proxy may answer in place of the cluster that a
name stands for. In it everything looks deleted. So an answer counts only while the UID of the
namespace kube-system, read through the same client, is the accepted one. It is read

- when it was not read for a short while;
- for each new connection, before anything is sent through it, by a request that opens another one:
  those that stand may still lead to where the address led before;
- after each answer by which something is absent, because deletions and creations follow from that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

from fleetbus.errors import Forbidden, KubeError, NotAccepted, NotFound
from fleetbus.kube.connection.breaker import naming

TRUSTED_FOR: Final = timedelta(seconds=2)
"""So long after it was read a UID vouches for answers by which nothing is absent."""


class Read(Protocol):
    """Reads the UID of kube-system."""

    async def __call__(self, *, alone: bool = False) -> str:
        """The UID.

        Args:
            alone: through a connection that is opened for this.

        Raises:
            KubeError: as the server answers.
        """
        ...


class Accepted(Protocol):
    """Which clusters are accepted."""

    async def uid(self, name: str) -> str:
        """The accepted UID of kube-system of the cluster of a name; empty if none is known.

        Raises:
            NotAccepted: it cannot be looked up, or another name stands for the same cluster.
        """
        ...

    async def aliases(self, name: str) -> tuple[str, ...]:
        """The other names of the same cluster.

        Raises:
            NotAccepted: they cannot be looked up.
        """
        ...


class Identity:
    """Whether the cluster behind one client is the accepted one.

    Args:
        cluster: its name in the fleet.
        accepted: knows the accepted UID.
        read: reads the UID of kube-system through the client.
        recorded: the UID that the hub has on record; it counts while no accepted one is known.
    """

    def __init__(self, cluster: str, *, accepted: Accepted, read: Read, recorded: str = "") -> None:
        self._cluster = cluster
        self._accepted = accepted
        self._read = read
        # Of the cluster that answered last; before, the recorded one.
        self._uid = recorded
        self._looks = Looks(self._compare)
        self._looks_alone = Looks(partial(self._compare, alone=True))

    async def verify(self) -> None:
        """Make sure that answers of this moment count.

        Raises:
            NotAccepted: another cluster answers, or nobody knows which.
            KubeError: it could not be asked.
        """
        await self._looks.since(time.monotonic() - TRUSTED_FOR.total_seconds())

    async def verify_anew(self) -> str:
        """Make sure that the answers up to now count, by a reading that begins now; the UID.

        Raises:
            NotAccepted, KubeError: as for `verify`.
        """
        await self._looks.since(time.monotonic())
        return self._uid

    async def trusted_uid(self) -> str:
        """The UID of the cluster whose answers count at this moment.

        Raises:
            NotAccepted, KubeError: as for `verify`.
        """
        await self.verify()
        return self._uid

    async def vouch(self) -> None:
        """Make sure that a connection which was just opened leads to the accepted cluster.

        Raises:
            NotAccepted, KubeError: as for `verify`.
        """
        await self._looks_alone.since(time.monotonic())

    async def _compare(self, *, alone: bool = False) -> None:
        with naming(self._cluster):
            await self._look(alone=alone)

    async def _look(self, *, alone: bool) -> None:
        # Where no accepted one is known and the hub has none on record, the first one that answers
        # counts: a cluster may be written to that nobody watches, and joining it was consent.
        accepted = await self._accepted.uid(self._cluster) or self._uid
        try:
            found = await self._read(alone=alone)
        except (Forbidden, NotFound) as e:
            why = f"nobody knows which cluster answers; get on namespace kube-system is needed: {e}"
            raise _refusal(why) from e
        if accepted and found != accepted:
            raise _refusal(
                f"another cluster answers: kube-system has UID {found}, not the accepted {accepted}"
                f"; to consent: fleetbus clusters accept {self._cluster} --uid {found}"
            )
        self._uid = found


class Looks:
    """Looks that those who want one at the same time share.

    Args:
        look: one.
    """

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        self._look = look
        self._looking = asyncio.Lock()
        # When the last one that went well began, in `time.monotonic()`.
        self._began = float("-inf")
        # How many have failed, and how the last one did.
        self._failures = 0
        self._error: KubeError | None = None

    async def since(self, moment: float) -> None:
        """Wait for a look that began at this moment or later.

        Raises:
            KubeError: what the look raises.
        """
        if self._began >= moment:
            return
        failures = self._failures
        async with self._looking:
            if self._began >= moment:
                return
            if self._error is not None and self._failures > failures:
                raise self._error  # it failed while we waited for it: one that hangs does so once
            began = time.monotonic()
            try:
                await self._look()
            except KubeError as e:
                self._failures, self._error = self._failures + 1, e
                self._began = float("-inf")
                raise
            self._began, self._error = began, None


def _refusal(why: str) -> NotAccepted:
    return NotAccepted(0, "NotAccepted", why)
