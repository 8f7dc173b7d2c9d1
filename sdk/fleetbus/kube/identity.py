"""Which cluster is behind an address (rule W13).

A rebuilt cluster, a wrong kubeconfig or a confused proxy may answer in place of the cluster that a
name stands for. In it everything looks deleted. So an answer counts only while the UID of the
namespace kube-system, read through the same client, is the accepted one. It is read

- when it was not read for a short while, and after each new connection;
- after each answer by which something is absent, because deletions and creations follow from that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Final, Protocol

import aiohttp

from fleetbus.errors import Forbidden, KubeError, NotAccepted, NotFound, Unreachable

TRUSTED_FOR: Final = timedelta(seconds=2)
"""So long after it was read a UID vouches for answers by which nothing is absent."""

Read = Callable[[], Awaitable[str]]


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
    """

    def __init__(self, cluster: str, *, accepted: Accepted, read: Read) -> None:
        self._cluster = cluster
        self._accepted = accepted
        self._read = read
        self._reading = asyncio.Lock()
        self._uid = ""
        # In `time.monotonic()`.
        self._verified_at = float("-inf")
        self._connected_at = float("-inf")
        # How many readings have failed, and how the last one did.
        self._failures = 0
        self._error: KubeError | None = None

    def watch_connections(self, path: str) -> aiohttp.TraceConfig:
        """What tells of a connection that was opened: nobody has looked what is behind it.

        Args:
            path: requests with this as their context are such looks.
        """

        async def note(
            _session: aiohttp.ClientSession,
            context: SimpleNamespace,
            _params: aiohttp.TraceConnectionCreateEndParams,
        ) -> None:
            if context.trace_request_ctx != path:
                self._connected_at = time.monotonic()

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(note)
        return trace

    async def verify(self) -> None:
        """Make sure that answers of this moment count.

        Raises:
            NotAccepted: another cluster answers, or nobody knows which.
            KubeError: it could not be asked.
        """
        since = time.monotonic() - TRUSTED_FOR.total_seconds()
        await self._verify(max(since, self._connected_at))

    async def verify_anew(self) -> str:
        """Make sure that the answers up to now count, by a reading that begins now; the UID.

        Raises:
            NotAccepted, KubeError: as for `verify`.
        """
        await self._verify(time.monotonic())
        return self._uid

    async def _verify(self, since: float) -> None:
        """Calls at the same time share a reading, if it begins late enough for them."""
        if self._verified_at >= since:
            return
        failures = self._failures
        async with self._reading:
            if self._verified_at >= since:
                return
            if self._error is not None and self._failures > failures:
                raise self._error  # it failed while we waited for it: one that hangs does so once
            began = time.monotonic()
            try:
                self._uid = await self._compare()
            except KubeError as e:
                if isinstance(e, Unreachable):
                    e.cluster = e.cluster or self._cluster
                self._failures, self._error = self._failures + 1, e
                self._verified_at = float("-inf")
                raise
            self._verified_at, self._error = began, None

    async def _compare(self) -> str:
        # Until a watcher tells, the first one that answered counts: a cluster may be written to
        # that nobody watches, and one that has just joined was consented to.
        accepted = await self._accepted.uid(self._cluster) or self._uid
        try:
            found = await self._read()
        except (Forbidden, NotFound) as e:
            why = f"nobody knows which cluster answers; get on namespace kube-system is needed: {e}"
            raise _refusal(why) from e
        if accepted and found != accepted:
            raise _refusal(
                f"another cluster answers: kube-system has UID {found}, not the accepted {accepted}"
                f"; to consent: fleetbus clusters accept {self._cluster} --uid {found}"
            )
        return found


def _refusal(why: str) -> NotAccepted:
    return NotAccepted(0, "NotAccepted", why)
