"""Detects an etcd that was restored from a backup, by the versions of its API server (rule W12).

A watch from a version that a restored server has not reached yet is answered 200 and stays silent,
and later events with lower versions are dropped. So before a watch is opened the server is asked
for its version, by a list of one object.
"""

from __future__ import annotations

from contextlib import aclosing
from datetime import timedelta

from fleetbus.kube.client import KubeClient
from fleetbus.kube.list_watch.listing import WatchTarget, list_pages
from fleetbus_proto.versions import is_comparable, is_newer
from fleetbus_watcher.cluster_identity import ClusterIdentity
from fleetbus_watcher.errors import ClusterRestored, WatcherError


class HistoryCheck:
    """Called with the version from which a watch is about to be opened.

    Args:
        client: the API server.
        target: what is watched.
        silence: how long the server may take to answer.
        identity: checks which cluster answers.
        identity_age: how old its last check may be.
        is_fresh: whether a list has just returned that version, so that the first call need not
            check it.
    """

    def __init__(
        self,
        client: KubeClient,
        target: WatchTarget,
        silence: timedelta,
        identity: ClusterIdentity,
        identity_age: timedelta,
        *,
        is_fresh: bool,
    ) -> None:
        self._client = client
        self._target = target
        self._silence = silence
        self._identity = identity
        self._identity_age = identity_age
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
        await self._identity.check(self._identity_age)
        pages = list_pages(self._client, self._target, limit=1, idle_timeout=self._silence)
        async with aclosing(pages):
            async for page in pages:
                check_not_restored(version, page.resource_version)
                return


def check_list_version(highest: str, version: str, abandoned: type[WatcherError]) -> None:
    """Compare the version of a list with the highest known one.

    Raises:
        ClusterRestored: it is lower.
        WatcherError: of the given type: it is not a number, so consumers could not order events.
    """
    if not is_comparable(version):
        raise abandoned(f"resourceVersion {version!r} is not a decimal number")
    check_not_restored(highest, version)


def check_not_restored(before: str, now: str) -> None:
    """Compare a version that the server has returned before with its present one.

    Raises:
        ClusterRestored: the present one is lower.
    """
    if is_comparable(now) and is_newer(before, now):
        raise ClusterRestored(
            f"the API server is at resourceVersion {now}, and was at {before}:"
            " its etcd was restored from a backup"
        )
