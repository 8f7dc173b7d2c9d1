"""Serves the registrations of agents, and keeps their accounts on NATS in step (rule S3).

Every projector does so. A record is written on condition that it is as it was read, so a one-time
nkey counts once, whoever is asked. The accounts are written on condition that nobody has written
them since before the records were listed, so that no projector brings back what was revoked.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog
from nats.aio.msg import Msg
from prometheus_client import Counter, Gauge

from fleetbus.agents.accounts import render_accounts
from fleetbus.agents.records import AgentRecord, read_record, read_time
from fleetbus.bus.connection import Bus
from fleetbus.clusters.membership import AGENT_LABEL, agent_record_name
from fleetbus.clusters.mirror import Mirror
from fleetbus.clusters.providers.cluster import SECRETS
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError, ConfigError, Conflict, FleetbusError, NotAccepted
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.json_fields import string
from fleetbus.kube.list_watch.listing import WatchTarget
from fleetbus.process.log_once import LogOnce
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.registration import (
    REFUSED,
    Registration,
    RegistrationAnswer,
    SignedRegistration,
    encode_registration,
)
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import REGISTRATIONS_ALL
from fleetbus_reconciler.agents.decision import (
    Circumstances,
    Decision,
    decide,
    noted_refusal,
    read_request,
)

log = structlog.get_logger()

AGENTS: Final = Gauge(
    "fleetbus_agents",
    "Clusters with an agent, by state: registered, pending until somebody accepts it, joining, or"
    " expired if none registered in time.",
    ["state"],
)
PENDING_FOR: Final = Gauge(
    "fleetbus_agents_pending_seconds",
    "Time for which the oldest registration has waited for acceptance; 0 if none waits.",
)
REGISTRATIONS: Final = Counter(
    "fleetbus_agent_registrations_total",
    "Registrations and changes of nkeys that agents sent, by outcome: accepted, pending, refused,"
    " or failed because the hub did not answer.",
    ["outcome"],
)
ACCOUNTS_KEY: Final = "agents.conf.gz"
"""The key of the Secret with the accounts: compressed, because a Secret has at most 1 MiB."""
_QUEUE: Final = "registrars"
_WAITING: Final = 256
"""Requests; more of them are dropped, and sent again by agents."""
_ATTEMPTS: Final = 5
_CHECKS: Final = timedelta(seconds=60)
_APART: Final = timedelta(milliseconds=200)
"""Between two writes of the accounts: joins of many clusters share one."""
_STATES: Final = ("registered", "pending", "joining", "expired")


class Registrar:
    """Answers registrations, and writes the accounts of agents.

    Args:
        hub: access data of the hub; None means the pod's service account.
        bus: the connection to NATS.
        clusters: the fleet, whose accepted UIDs count.
        namespace: of the records.
        accounts: the Secret with the accounts, as namespace/name; it exists.
        approval: whether somebody accepts each new agent.
        now: the time.
    """

    def __init__(
        self,
        *,
        hub: KubeConfig | None,
        bus: Bus,
        clusters: Clusters,
        namespace: str,
        accounts: str,
        approval: bool,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._config = hub
        self._bus = bus
        self._clusters = clusters
        self._namespace = namespace
        self._accounts = accounts
        self._approval = approval
        self._now = now
        self._changed = asyncio.Event()
        self._log_once = LogOnce()

    async def run(self) -> None:
        """Serve until cancelled."""
        target = WatchTarget(
            parse_resource(SECRETS), self._namespace, label_selector=f"{AGENT_LABEL}=true"
        )
        async with KubeClient(self._config) as hub:
            mirror = Mirror(hub, target)
            async with asyncio.TaskGroup() as group:
                group.create_task(mirror.run(self._changed), name="follow records of agents")
                group.create_task(self._keep_accounts(hub), name="accounts of agents")
                group.create_task(self._serve(hub, mirror), name="serve registrations of agents")

    # --- registrations --------------------------------------------------------------------------

    async def _serve(self, hub: KubeClient, mirror: Mirror) -> None:
        async def on_message(message: Msg) -> None:
            if message.reply:
                answer = await self._answer(hub, mirror, message)
                REGISTRATIONS.labels(answer.state if answer else "failed").inc()
                if answer is not None:
                    await self._bus.publish(message.reply, encode_registration(answer))

        subscription = await self._bus.nc.subscribe(
            REGISTRATIONS_ALL, queue=_QUEUE, cb=on_message, pending_msgs_limit=_WAITING
        )
        try:
            await asyncio.Event().wait()
        finally:
            await subscription.unsubscribe()

    async def _answer(
        self, hub: KubeClient, mirror: Mirror, message: Msg
    ) -> RegistrationAnswer | None:
        """The answer; None if the hub does not answer, so that the agent asks again."""
        cluster = message.subject.rpartition(".")[2]
        try:
            request = read_request(cluster, message.data)
            if isinstance(request, RegistrationAnswer):
                return request
            decision = await self._change(hub, mirror, *request)
        except (FleetbusError, InvalidName) as e:
            log.warning("agent_not_registered", cluster=cluster, error=str(e))
            return None
        if decision.record is not None or decision.state == REFUSED:
            log.info("agent_registration", cluster=cluster, **_facts(decision))
        return decision.answer

    async def _change(
        self,
        hub: KubeClient,
        mirror: Mirror,
        signed: SignedRegistration,
        registration: Registration,
    ) -> Decision:
        """Decide, and write what follows unless somebody else was faster."""
        for _ in range(_ATTEMPTS):
            place = (self._namespace, agent_record_name(registration.cluster))
            # Whoever has no record cannot make the hub read anything.
            known = (mirror.objects or {}).get(place)
            secret = await hub.get(SECRETS, *place) if known is not None else None
            if secret is None or string(secret, "metadata", "labels", AGENT_LABEL) != "true":
                return Decision(REFUSED, "no agent was joined under this name")
            record = read_record(secret)
            given = await self._circumstances(record.cluster, (mirror.objects or {}).values())
            decision = decide(record, signed.signed_by, registration, given)
            after = decision.record
            if decision.state == REFUSED:
                after = noted_refusal(record, decision.message, given.now)
            if after is None:
                return decision
            try:
                await hub.patch(SECRETS, *place, _patch(secret, after.data()))
            except Conflict:
                continue
            return decision
        raise ConfigError("the record of the agent changes all the time")

    async def _circumstances(self, cluster: str, secrets: Iterable[Object]) -> Circumstances:
        try:
            uid = await self._clusters.accepted_uid(cluster)
        except NotAccepted:
            uid = ""  # which one counts is being asked; the agent's own check holds meanwhile
        records = [record for record in self._records(secrets) if record.cluster != cluster]
        taken = frozenset(
            key for each in records for key in (each.key, each.next_key, each.pending)
        )
        return Circumstances(self._now(), self._approval, uid, taken - {""})

    # --- accounts -------------------------------------------------------------------------------

    async def _keep_accounts(self, hub: KubeClient) -> None:
        while True:
            self._changed.clear()
            try:
                end = await self._write_accounts(hub)
            except (FleetbusError, BusError) as e:
                if self._log_once.should_log(str(e), "accounts"):
                    log.warning("agent_accounts_not_written", error=str(e))
                end = self._now() + timedelta(seconds=2)
            await asyncio.sleep(_APART.total_seconds())
            left = min((end - self._now() if end else _CHECKS), _CHECKS).total_seconds()
            try:
                async with asyncio.timeout(max(left, 0)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _write_accounts(self, hub: KubeClient) -> datetime | None:
        """Write the accounts if they differ; returns when the next one-time nkey ends."""
        namespace, name = self._accounts.split("/", 1)
        while True:
            # Before the records: what is written is never older than what was there.
            stored = await hub.get(SECRETS, namespace, name)
            if stored is None:
                raise ConfigError(f"Secret {self._accounts} is missing: the chart makes it")
            secrets = await hub.list(SECRETS, self._namespace, label_selector=f"{AGENT_LABEL}=true")
            records = self._records(secrets)
            self._show(records)
            text = render_accounts(records, self._now())
            content = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
            if string(stored, "data", ACCOUNTS_KEY) != content:
                try:
                    await hub.patch(
                        SECRETS, namespace, name, _patch(stored, {ACCOUNTS_KEY: content})
                    )
                except Conflict:
                    continue
                log.info("agent_accounts_written", agents=text.count("users: ["))
            ends = [record.end for record in records if record.may_register(self._now())]
            return min((end for end in ends if end is not None), default=None)

    def _records(self, secrets: Iterable[Object]) -> list[AgentRecord]:
        records: list[AgentRecord] = []
        for secret in secrets:
            try:
                records.append(read_record(secret))
            except ConfigError as e:  # of one cluster only (rule S7)
                if self._log_once.should_log(str(e), string(secret, "metadata", "name")):
                    log.warning("agent_record_unusable", error=str(e))
        return records

    def _show(self, records: Sequence[AgentRecord]) -> None:
        now = self._now()
        states = [_state(record, now) for record in records]
        for state in _STATES:
            AGENTS.labels(state).set(states.count(state))
        PENDING_FOR.set(max((_pending_for(record, now) for record in records), default=0.0))


def _state(record: AgentRecord, now: datetime) -> str:
    if record.pending:
        return "pending"
    if record.key:
        return "registered"
    return "joining" if record.may_register(now) else "expired"


def _pending_for(record: AgentRecord, now: datetime) -> float:
    """For how many seconds a registration has waited for acceptance; 0 if it does not."""
    if not record.pending or not record.changed:
        return 0.0
    return max((now - read_time(record.changed)).total_seconds(), 0.0)


def _facts(decision: Decision) -> dict[str, Any]:
    record = decision.record
    facts = {"uid": record.uid, "instance": record.instance} if record is not None else {}
    return {
        "state": decision.state,
        **facts,
        **({"why": decision.message} if decision.message else {}),
    }


def _patch(secret: Object, data: dict[str, Any]) -> Object:
    """A merge patch on condition that the Secret is as it was read."""
    return {"metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]}, "data": data}
