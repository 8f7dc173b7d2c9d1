"""Checks which cluster is behind an address (rule W13).

A rebuilt cluster, a wrong kubeconfig or a misrouting proxy may answer in place of the cluster that
a name stands for, and in it every object seems to be deleted. So a response counts only while the
UID of the namespace kube-system, read through the same client, is the accepted one. It is read

- when the last reading is older than a moment;
- for each new connection, before anything is sent through it, by a request with a connection of its
  own: the open ones may still lead to where the address led before;
- after each response that shows something as absent, because deletions and creations follow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

from fleetbus.errors import Forbidden, KubeError, NotAccepted, NotFound
from fleetbus.kube.connection.breaker import name_cluster_in_errors

TRUSTED_FOR: Final = timedelta(seconds=2)
"""For how long one reading is enough for responses that show nothing as absent."""


class ReadUid(Protocol):
    """Reads the UID of the namespace kube-system."""

    async def __call__(self, *, alone: bool = False) -> str:
        """Return the UID.

        Args:
            alone: use a new connection of its own.

        Raises:
            KubeError: the server refused, or did not answer.
        """
        ...


class AcceptedUidSource(Protocol):
    """Looks up the UIDs of the accepted clusters."""

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


class IdentityCheck:
    """Checks that the cluster behind one client is the accepted one.

    Args:
        cluster: its name in the fleet.
        accepted: looks up the accepted UID.
        read: reads the UID of kube-system through the client.
        recorded: the UID that the hub has on record; used while no accepted one is known.
    """

    def __init__(
        self, cluster: str, *, accepted: AcceptedUidSource, read: ReadUid, recorded: str = ""
    ) -> None:
        self._cluster = cluster
        self._accepted = accepted
        self._read = read
        # Of the cluster that answered last; the recorded one before the first answer.
        self._uid = recorded
        self._shared_check = SharedCheck(self._compare)
        self._shared_check_alone = SharedCheck(partial(self._compare, alone=True))

    async def verify(self) -> None:
        """Make sure that responses received now count.

        Raises:
            NotAccepted: another cluster answers, or it is unknown which one does.
            KubeError: the UID cannot be read.
        """
        await self._shared_check.run_since(time.monotonic() - TRUSTED_FOR.total_seconds())

    async def verify_anew(self, within: timedelta = timedelta()) -> str:
        """Make sure that the responses so far count, by a reading that starts now; return the UID.

        Args:
            within: a reading that began no longer ago than this is enough.

        Raises:
            NotAccepted, KubeError: as for `verify`.
        """
        await self._shared_check.run_since(time.monotonic() - within.total_seconds())
        return self._uid

    @property
    def uid(self) -> str:
        """The UID of the cluster that answered last; before, the recorded one, or empty."""
        return self._uid

    async def trusted_uid(self) -> str:
        """The UID of the cluster whose responses count now.

        Raises:
            NotAccepted, KubeError: as for `verify`.
        """
        await self.verify()
        return self._uid

    async def verify_new_connection(self) -> None:
        """Make sure that a connection opened just now leads to the accepted cluster.

        Raises:
            NotAccepted, KubeError: as for `verify`.
        """
        await self._shared_check_alone.run_since(time.monotonic())

    async def _compare(self, *, alone: bool = False) -> None:
        with name_cluster_in_errors(self._cluster):
            await self._check(alone=alone)

    async def _check(self, *, alone: bool) -> None:
        # Without an accepted or recorded UID the first cluster that answers counts: a cluster that
        # nobody watches may still be written to, and joining it was consent.
        accepted = await self._accepted.uid(self._cluster) or self._uid
        try:
            uid = await self._read(alone=alone)
        except (Forbidden, NotFound) as e:
            why = f"cannot tell which cluster answers: get on namespace kube-system is needed: {e}"
            raise _refusal(why) from e
        if accepted and uid != accepted:
            raise _refusal(
                f"another cluster answers: kube-system has UID {uid}, not the accepted {accepted}"
                f"; to consent: fleetbus clusters accept {self._cluster} --uid {uid}"
            )
        self._uid = uid


class SharedCheck:
    """Runs a check once for all callers that need one at the same time.

    Args:
        check: the check.
    """

    def __init__(self, check: Callable[[], Awaitable[None]]) -> None:
        self._check = check
        self._checking = asyncio.Lock()
        # When the last check that passed began, in `time.monotonic()`.
        self._began = float("-inf")
        # How many checks have failed, and the error of the last one.
        self._failures = 0
        self._error: KubeError | None = None

    async def run_since(self, moment: float) -> None:
        """Wait for a check that began at this moment or later, or run one.

        Raises:
            KubeError: the check failed.
        """
        if self._began >= moment:
            return
        failures = self._failures
        async with self._checking:
            if self._began >= moment:
                return
            if self._error is not None and self._failures > failures:
                # It failed while we waited for it: a server that hangs delays its callers once.
                raise self._error
            began = time.monotonic()
            try:
                await self._check()
            except KubeError as e:
                self._failures, self._error = self._failures + 1, e
                self._began = float("-inf")
                raise
            self._began, self._error = began, None


def _refusal(why: str) -> NotAccepted:
    return NotAccepted(0, "NotAccepted", why)
