"""Which cluster the API server belongs to (rule W13).

The UID of kube-system is read for each new connection, before anything is sent through it. When
another cluster answers, all connections are closed, so that none leads to the one before.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.errors import KubeError, NotAccepted, Unreachable
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.http import HttpResponse, HttpTransport
from fleetbus.kube.connection.identity import SharedCheck
from fleetbus.kube.connection.response import Limits
from fleetbus.kube.connection.sessions import KUBE_SYSTEM
from fleetbus.kube.requests import Call, acting_as
from fleetbus.kube.responses import (
    error_from_response,
    parse_object,
    read_response,
    require_name,
)
from fleetbus_agent import metrics

log = structlog.get_logger()

_MEANT: Final = ContextVar("meant_cluster", default="")
_READ: Final = Limits(total=timedelta(seconds=10))
_UID_BYTES: Final = 1024 * 1024
_BUFFER: Final = 64 * 1024
"""Unread bytes of one answer; the caller's credit bounds what is on its way."""
_USER_AGENT: Final = "fleetbus-agent"


class ClusterChanged(Unreachable):
    """Another cluster answers than a moment ago; all connections were closed."""


class MemberServer:
    """The API server of this cluster.

    Args:
        config: access data; None means the service account of the pod.

    Attributes:
        uid: the UID of kube-system of the cluster that answered last; empty before.
    """

    def __init__(self, config: KubeConfig | None) -> None:
        self.uid = ""
        self._problem = "not asked yet"
        self._check = SharedCheck(self._read_uid)
        self._http = HttpTransport(
            config,
            user_agent=_USER_AGENT,
            buffer=_BUFFER,
            verify=self._verify,
            decompress=False,
            exempt="",  # a caller's request for the UID must not open an unchecked connection
        )

    def trouble(self) -> str:
        """Why the API server did not answer when it was last asked; empty if it did."""
        return self._problem

    async def close(self) -> None:
        """Close every connection."""
        self._http.refuse()
        await self._http.close()

    async def learn(self) -> None:
        """Read the UID with a new connection.

        Raises:
            KubeError: it could not be read.
        """
        await self._check.run_since(time.monotonic())

    async def send(self, call: Call, limits: Limits, meant_uid: str) -> HttpResponse:
        """Send a request to the API server of the cluster that is meant.

        Args:
            call: the request.
            limits: its time limits.
            meant_uid: the UID of kube-system; empty if any will do.

        Raises:
            NotAccepted: it is the server of another cluster; nothing was sent.
            Unreachable: there was no answer.
        """
        if meant_uid and meant_uid != self.uid:
            # Perhaps another cluster answers by now, and it is the one that is meant.
            with suppress(ClusterChanged):
                await self.learn()
            self._require(meant_uid)
        _MEANT.set(meant_uid)
        try:
            response = await self._send(call, limits, meant_uid)
        except KubeError as e:
            self._problem = str(e)
            raise
        self._problem = ""
        return response

    async def _send(self, call: Call, limits: Limits, meant_uid: str) -> HttpResponse:
        try:
            return await self._http.send(call, limits)
        except ClusterChanged:  # found out before anything was sent
            self._require(meant_uid)
            return await self._http.send(call, limits)

    def _require(self, meant_uid: str) -> None:
        if meant_uid and meant_uid != self.uid:
            raise NotAccepted(
                0,
                "NotAccepted",
                f"the agent's API server is of another cluster: kube-system has UID {self.uid},"
                f" not {meant_uid}",
            )

    async def _verify(self, _method: str) -> bool:
        meant_uid = _MEANT.get()
        try:
            await self._check.run_since(time.monotonic())
        except ClusterChanged:
            raise
        except KubeError:
            if meant_uid:
                raise
            return False
        self._require(meant_uid)
        return True

    async def _read_uid(self) -> None:
        try:
            uid = await self._ask()
        except KubeError as e:
            self._problem = str(e)
            raise
        self._problem = ""
        before, self.uid = self.uid, uid
        if before not in ("", uid):
            metrics.ANOTHER.inc()
            log.error("another_cluster_answers", uid=uid, before=before)
            await self._http.close()
            text = "another cluster answers at the address of the API server"
            raise ClusterChanged(0, "Unreachable", text)

    async def _ask(self) -> str:
        call = Call("GET", KUBE_SYSTEM, alone=True)
        with acting_as(""):
            response = await self._http.send(call, _READ)
        if response.status >= 300:  # noqa: PLR2004 -- HTTP
            try:
                raise await error_from_response(response)
            finally:
                response.release()
        body = await read_response(response, _UID_BYTES)
        return str(require_name(parse_object(body), "kube-system")["metadata"]["uid"])


async def learn_patiently(server: MemberServer, *, pause: timedelta) -> None:
    """Read the UID until that works."""
    while True:
        try:
            await server.learn()
        except KubeError as e:
            log.warning("api_server_not_usable", error=str(e))
        else:
            return
        await asyncio.sleep(pause.total_seconds())
