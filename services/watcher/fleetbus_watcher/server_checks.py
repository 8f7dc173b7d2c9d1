"""Whether it is still the same API server with the same history (rules W12, W13).

A watch from a version that a restored server has not reached yet is answered 200 and stays silent,
and later events with lower versions are dropped. So before a watch is opened the server is asked
where it is: a list of one object tells. Another cluster may answer at the same address, too.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from datetime import timedelta
from typing import Final, Protocol

from fleetbus.errors import NotAccepted
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.identity import SharedCheck
from fleetbus.kube.listing import WatchTarget, list_pages
from fleetbus_proto.versions import is_comparable, is_newer
from fleetbus_watcher.errors import ClusterReplaced, ClusterRestored, WatcherError
from fleetbus_watcher.reachability import Reach

_IDENTIFIED_WITHIN: Final = timedelta(milliseconds=50)
"""All watches of a server that comes back are opened at once; one question does for them."""


class CheckIdentity(Protocol):
    """Raises ClusterReplaced if another cluster answers, KubeError if none does."""

    async def __call__(self, within: timedelta = ...) -> None:
        """Ask, unless somebody has so lately."""


class Identity:
    """Who the cluster is: the UID of its namespace kube-system.

    Args:
        client: the API server.
        reach: asks again what hangs when the server is back.

    Attributes:
        uid: what was learned; empty before.
    """

    def __init__(self, client: KubeClient, reach: Reach) -> None:
        self._client = client
        self._reach = reach
        self.uid = ""
        self._checked_at = float("-inf")
        self._looks = SharedCheck(self._look)

    async def learn(self) -> None:
        """Ask who it is; from now on nothing is sent through a connection to another one.

        Raises:
            KubeError: it does not say.
        """
        self._client.verify_connection = None
        await (
            self._client.close_connections()
        )  # what stands may lead to the one that was there before
        self.uid = await self._reach.ask(self._client.kube_system_uid)
        self._client.verify_connection = self._verify_connection

    async def check(self, within: timedelta = timedelta()) -> None:
        """W13: before each list and watch make sure that it is still the same cluster.

        Args:
            within: it need not be asked if somebody has so lately.

        Raises:
            ClusterReplaced: it is another one.
            KubeError: it does not say.
        """
        now = time.monotonic()
        if now - self._checked_at < within.total_seconds():
            return
        uid = await self._reach.ask(self._client.kube_system_uid)
        if uid != self.uid:
            raise ClusterReplaced(f"kube-system has UID {uid} now, it was {self.uid}")
        self._checked_at = now

    async def _verify_connection(self) -> None:
        await self._looks.run_since(time.monotonic())

    async def _look(self) -> None:
        """Find out where new connections lead.

        Raises:
            NotAccepted: to another cluster. All others are closed, so that who asks next hears it.
            KubeError: it does not say.
        """
        uid = await self._client.kube_system_uid(alone=True)
        if uid != self.uid:
            await self._client.close_connections()
            raise NotAccepted(0, "NotAccepted", f"kube-system has UID {uid} now, it was {self.uid}")


class Probe:
    """Called with the version at which a watch is about to be opened.

    Args:
        client: the API server.
        target: what is watched.
        silence: how long an answer may take.
        check_identity: asks who the server is.
        is_fresh: whether a list has just told that version, so that the first call knows enough.
    """

    def __init__(
        self,
        client: KubeClient,
        target: WatchTarget,
        silence: timedelta,
        check_identity: CheckIdentity,
        *,
        is_fresh: bool,
    ) -> None:
        self._client = client
        self._target = target
        self._silence = silence
        self._check_identity = check_identity
        self._is_fresh = is_fresh

    async def __call__(self, version: str) -> None:
        """Ask the server, unless that is known.

        Raises:
            ClusterReplaced: it is another cluster's.
            ClusterRestored: it is behind that version.
            KubeError: it does not answer.
        """
        if self._is_fresh:
            self._is_fresh = False
            return
        await self._check_identity(_IDENTIFIED_WITHIN)
        pages = list_pages(self._client, self._target, limit=1, idle_timeout=self._silence)
        async with aclosing(pages):
            async for page in pages:
                check_not_restored(version, page.resource_version)
                return


def check_list(known: str, found: str, abandoned: type[WatcherError]) -> None:
    """Check the version of a list, with what the server has told before.

    Raises:
        ClusterRestored: it fell.
        WatcherError: of the kind that is given: without an order of versions the guard behind us
            cannot work.
    """
    if not is_comparable(found):
        raise abandoned(f"resourceVersion {found!r} is not a decimal number")
    check_not_restored(known, found)


def check_not_restored(known: str, found: str) -> None:
    """Compare a version that a server has told with one that it tells now.

    Raises:
        ClusterRestored: it fell.
    """
    if is_comparable(found) and is_newer(known, found):
        raise ClusterRestored(
            f"the API server is at resourceVersion {found}, and was at {known}:"
            " its etcd was restored from a backup"
        )
