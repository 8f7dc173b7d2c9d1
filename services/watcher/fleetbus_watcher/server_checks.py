"""Checks that the API server is still the same cluster with the same history (rules W12, W13).

A watch from a version that a restored server has not reached yet is answered 200 and stays silent,
and later events with lower versions are dropped. So before a watch is opened the server is asked
for its version, by a list of one object. Another cluster may answer at the same address, too.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from datetime import timedelta
from typing import Final

from fleetbus.errors import NotAccepted
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.identity import SharedCheck
from fleetbus.kube.list_watch.listing import WatchTarget, list_pages
from fleetbus_proto.versions import is_comparable, is_newer
from fleetbus_watcher.errors import ClusterReplaced, ClusterRestored, WatcherError
from fleetbus_watcher.reachability import Reachability

_CHECKED_WITHIN: Final = timedelta(milliseconds=50)
"""All watches of a server that comes back are opened at once; one request is enough for them."""


class ClusterIdentity:
    """Which cluster answers: the UID of its namespace kube-system.

    Args:
        client: the API server.
        reachability: repeats a request that hangs once the server is back.

    Attributes:
        uid: the UID that was learned; empty before.
    """

    def __init__(self, client: KubeClient, reachability: Reachability) -> None:
        self._client = client
        self._reachability = reachability
        self.uid = ""
        self._checked_at = float("-inf")
        self._connection_checks = SharedCheck(self._check_connection)

    async def learn(self) -> None:
        """Read the UID; from now on nothing is sent through a connection to another cluster.

        Raises:
            KubeError: it could not be read.
        """
        self._client.verify_connection = None
        # Open connections may lead to the cluster that was there before.
        await self._client.close_connections()
        self.uid = await self._reachability.retry(self._client.kube_system_uid)
        self._client.verify_connection = self._verify_connection

    async def check(self, within: timedelta = timedelta()) -> None:
        """Make sure, before each list and watch, that it is still the same cluster (rule W13).

        Args:
            within: a check that was made so recently is enough.

        Raises:
            ClusterReplaced: it is another one.
            KubeError: the UID could not be read.
        """
        now = time.monotonic()
        if now - self._checked_at < within.total_seconds():
            return
        uid = await self._reachability.retry(self._client.kube_system_uid)
        if uid != self.uid:
            raise ClusterReplaced(f"kube-system has UID {uid} now, it was {self.uid}")
        self._checked_at = now

    async def _verify_connection(self) -> None:
        await self._connection_checks.run_since(time.monotonic())

    async def _check_connection(self) -> None:
        """Check where new connections lead.

        Raises:
            NotAccepted: to another cluster. All others are closed, so that the next request on
                them fails too.
            KubeError: the UID could not be read.
        """
        uid = await self._client.kube_system_uid(alone=True)
        if uid != self.uid:
            await self._client.close_connections()
            raise NotAccepted(0, "NotAccepted", f"kube-system has UID {uid} now, it was {self.uid}")


class HistoryCheck:
    """Called with the version from which a watch is about to be opened.

    Args:
        client: the API server.
        target: what is watched.
        silence: how long the server may take to answer.
        identity: checks which cluster answers.
        is_fresh: whether a list has just returned that version, so that the first call need not
            check it.
    """

    def __init__(
        self,
        client: KubeClient,
        target: WatchTarget,
        silence: timedelta,
        identity: ClusterIdentity,
        *,
        is_fresh: bool,
    ) -> None:
        self._client = client
        self._target = target
        self._silence = silence
        self._identity = identity
        self._is_fresh = is_fresh

    async def __call__(self, version: str) -> None:
        """Check the server, unless a list has just done so.

        Raises:
            ClusterReplaced: it is another cluster's.
            ClusterRestored: it is behind that version.
            KubeError: it does not answer.
        """
        if self._is_fresh:
            self._is_fresh = False
            return
        await self._identity.check(_CHECKED_WITHIN)
        pages = list_pages(self._client, self._target, limit=1, idle_timeout=self._silence)
        async with aclosing(pages):
            async for page in pages:
                check_not_restored(version, page.resource_version)
                return


def check_list_version(known: str, found: str, abandoned: type[WatcherError]) -> None:
    """Compare the version of a list with the highest known one.

    Raises:
        ClusterRestored: it is lower.
        WatcherError: of the given type: it is not a number, so consumers could not order events.
    """
    if not is_comparable(found):
        raise abandoned(f"resourceVersion {found!r} is not a decimal number")
    check_not_restored(known, found)


def check_not_restored(known: str, found: str) -> None:
    """Compare a version that the server has returned before with its present one.

    Raises:
        ClusterRestored: the present one is lower.
    """
    if is_comparable(found) and is_newer(known, found):
        raise ClusterRestored(
            f"the API server is at resourceVersion {found}, and was at {known}:"
            " its etcd was restored from a backup"
        )
