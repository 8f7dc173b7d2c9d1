"""Checks that it is still the same cluster that answers at an address (rule W13).

It is checked before each list and watch, and behind each new connection. Whether another cluster is
accepted under the name is decided in `incarnation`, when it claims a number.
"""

from __future__ import annotations

import time
from datetime import timedelta

from fleetbus.errors import NotAccepted
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.identity import SharedCheck
from fleetbus_watcher.errors import ClusterReplaced
from fleetbus_watcher.reachability import Reachability


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
