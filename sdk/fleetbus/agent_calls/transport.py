"""The way of a client's requests through an agent in the cluster; see `Transport`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Final
from urllib.parse import unquote

from multidict import CIMultiDict

from fleetbus.agent_calls.calls import AgentCalls
from fleetbus.agent_calls.pending import SILENT, AgentSilent, MeantAnother, PendingCall
from fleetbus.agent_calls.unpacking import unpacked
from fleetbus.errors import Invalid, KubeError, NotAccepted, Unreachable
from fleetbus.kube.client import USER_AGENT, KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.response import BrokenOff, Limits
from fleetbus.kube.connection.sessions import KUBE_SYSTEM
from fleetbus.kube.connection.transport import MakeTransport, Trust
from fleetbus.kube.requests import Call, acting_user
from fleetbus.kube.responses import unreachable_error
from fleetbus.run.current import current_run, require_lease
from fleetbus_proto.calls import CHUNK_BYTES, MAX_CREDIT_BYTES, AskedBy, Head, Open
from fleetbus_proto.errors import MalformedMessage

_CLOSED: Final = "the client of this cluster is closed"


class AgentTransport:
    """Sends requests through an agent.

    Args:
        calls: the calls of this process.
        cluster: the name of the cluster.
        trust: the cluster that is meant (rule W13).
        user_agent: shown in the server's logs and in managedFields.
    """

    def __init__(self, calls: AgentCalls, cluster: str, trust: Trust, *, user_agent: str) -> None:
        self._calls = calls
        self._cluster = cluster
        self._trust = trust
        self._user_agent = user_agent
        self._refuses = False
        # Those without a head; afterwards the response ends its call.
        self._waiting: set[PendingCall] = set()

    def use(self, config: KubeConfig | None) -> None:
        """Do nothing: the agent has the access data."""

    def refuse(self) -> None:
        """Refuse every request from now on."""
        self._refuses = True

    async def close(self) -> None:
        """End the calls that wait for an answer; the connection to NATS is everybody's."""
        for pending in tuple(self._waiting):
            pending.cancel("the client of this cluster was closed")

    async def send(self, call: Call, limits: Limits) -> AgentResponse:
        """Send a request; see `Transport.send`."""
        if call.path == KUBE_SYSTEM:  # the check itself
            return await self._send(call, limits, "")
        if not self._trust.uid():
            await self._trust.verify(call.method)
        uid = self._trust.uid()
        try:
            return await self._send(call, limits, uid)
        except MeantAnother as e:
            # Nothing was sent. Consent may have been given to the cluster that answers now.
            await self._trust.verify(call.method)
            if self._trust.uid() == uid:
                raise NotAccepted(0, "NotAccepted", e.message) from e
            return await self._send(call, limits, self._trust.uid())

    async def _send(self, call: Call, limits: Limits, uid: str) -> AgentResponse:
        if self._refuses:
            raise Unreachable(0, "Unreachable", _CLOSED)
        await self._calls.start()
        require_lease(call.method)
        if call.body is not None and len(call.body) > MAX_CREDIT_BYTES:
            raise Invalid(413, "RequestEntityTooLarge", "the request is too large for an agent")
        try:
            pending = self._calls.open(
                self._cluster, lambda id_: self._frame(id_, call, limits, uid), limits, call.body
            )
        except MalformedMessage as e:
            raise Invalid(400, "BadRequest", str(e)) from e
        self._waiting.add(pending)
        try:
            head = await pending.head()
        except AgentSilent as e:
            raise Unreachable(0, SILENT, f"no answer: {e}") from e
        except BrokenOff as e:
            raise unreachable_error(e) from e
        except BaseException:
            pending.cancel()
            raise
        finally:
            self._waiting.discard(pending)
        return AgentResponse(call, pending, head)

    def _frame(self, id_: str, call: Call, limits: Limits, uid: str) -> Open:
        body = call.body
        return Open(
            id=id_,
            method=call.method,
            path=call.path,
            query=dict(call.query or {}),
            accept=call.accept,
            content_type=call.content_type if body is not None else "",
            if_none_match=call.etag,
            as_user=acting_user(),
            user_agent=call.user_agent or self._user_agent,
            within=_milliseconds(limits.total),
            idle=_milliseconds(limits.idle),
            uid=uid,
            asked_by=self._asker(),
            body=body[:CHUNK_BYTES] if body is not None else None,
            more=body is not None and len(body) > CHUNK_BYTES,
        )

    def _asker(self) -> AskedBy:
        run = current_run()
        if run is None:
            return AskedBy(component=self._calls.component)
        request = run.request
        name = "/".join(filter(None, (request.cluster, request.namespace, request.name)))
        return AskedBy(
            component=self._calls.component, controller=request.controller, object=name[:1024]
        )


def _milliseconds(limit: timedelta | None) -> int:
    return max(1, int(limit.total_seconds() * 1000)) if limit is not None else 0


class AgentResponse:
    """A response that comes through an agent; see `Response`.

    Args:
        call: the request.
        pending: its call.
        head: the beginning of its answer.
    """

    def __init__(self, call: Call, pending: PendingCall, head: Head) -> None:
        self._call = call
        self._pending = pending
        self.status = head.status
        self.headers: Mapping[str, str] = CIMultiDict(head.headers)
        self.method = call.method

    @property
    def path(self) -> str:
        """The path of the request, unescaped."""
        return unquote(self._call.path)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, unpacked; see `Response.chunks`."""
        return unpacked(self.headers.get("Content-Encoding", ""), self._pending.next_chunk)

    def explain(self, error: KubeError) -> None:
        """Add nothing: the agent has the credentials."""

    def keep_alive(self) -> None:
        """Do nothing: the frames of a call are never far apart."""

    def release(self) -> None:
        """End the call, unless it has ended."""
        self._pending.cancel()

    def close(self) -> None:
        """End the call; whoever reads it gets `BrokenOff`."""
        self._pending.cancel("the response was closed")


def way_through_agent(calls: AgentCalls, cluster: str) -> MakeTransport:
    """The way of clients of a cluster that only its agents can reach.

    Args:
        calls: the calls of this process.
        cluster: its name.
    """

    def make_transport(trust: Trust, user_agent: str) -> AgentTransport:
        return AgentTransport(calls, cluster, trust, user_agent=user_agent)

    return make_transport


def client_through_agent(
    calls: AgentCalls, cluster: str, *, user_agent: str = USER_AGENT
) -> KubeClient:
    """A client of a cluster that only its agents can reach.

    Args:
        calls: the calls of this process.
        cluster: its name.
        user_agent: shown in the server's logs and in managedFields.
    """
    way = way_through_agent(calls, cluster)
    client = KubeClient(None, user_agent=user_agent, make_transport=way)
    client.cluster = cluster
    return client
