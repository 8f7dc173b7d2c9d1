"""`fleetbus-agent doctor`: says in the member what keeps the agent from working.

It uses the settings, credentials and account of the agent, so it is run where the agent runs. It
takes no calls, and what it sends to NATS is for nobody.
"""

from __future__ import annotations

import asyncio
import secrets
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from fleetbus.bus.connection import Bus, connected, subscribed
from fleetbus.clusters.member_rights import watcher_rules
from fleetbus.errors import BusError, ConfigError, Forbidden, KubeError, Unauthorized
from fleetbus.kube.access_reviews import Right, missing_rights, rights_of
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus.kube.connection.response import Limits
from fleetbus.kube.requests import Call
from fleetbus.process import printer
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.findings import SIGNS, Finding, Severity
from fleetbus.process.settings import SharedSettings
from fleetbus_agent.member_server import MemberServer
from fleetbus_agent.nkey_checks import check_nkey
from fleetbus_agent.settings import AgentSettings
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import answers_subject, api_subject

_WITHIN: Final = timedelta(seconds=5)
_NATS_PORT: Final = 4222
_SKEW_SHOWN: Final = timedelta(seconds=5)
_SKEW_WRONG: Final = timedelta(minutes=5)
"""Tokens and certificates are then taken for expired, or not valid yet."""
_EVERYTHING: Final = Right("*", Resource("*", "v1", "*"))
_NATS, _SERVER, _RIGHTS, _CLOCK, _POLICY = "nats", "api server", "rights", "clock", "policy"


async def run_doctor(settings: AgentSettings, shared: SharedSettings) -> int:
    """Check everything and print a line for each finding; return 1 if one is an error."""
    is_wrong = False
    async for finding in check_agent(settings, shared):
        printer.line(f"{SIGNS[finding.severity]:<6} {finding.about:<11} {finding.text}")
        is_wrong = is_wrong or finding.severity is Severity.ERROR
    return int(is_wrong)


async def check_agent(settings: AgentSettings, shared: SharedSettings) -> AsyncIterator[Finding]:
    """Check NATS, then the API server; what does not answer is a finding."""
    yield await _check_nats(settings.cluster, shared.nats)
    config: KubeConfig | None = None
    try:
        if settings.kubeconfig is not None:
            config = read_kube_config(settings.kubeconfig, settings.context)
        async for finding in _check_server(settings, shared.nats, config):
            yield finding
    except ConfigError as e:
        advice = "is this a pod with a ServiceAccount? Otherwise set FLEETBUS_AGENT_KUBECONFIG"
        yield Finding(_SERVER, Severity.ERROR, str(e), advice)
    yield Finding(_POLICY, Severity.OK, _policy_text(settings))


def _policy_text(settings: AgentSettings) -> str:
    if settings.read_only:
        return "the hub may only read here, whatever the account may do"
    denied = f", without {' '.join(settings.deny)}" if settings.deny else ""
    return f"the hub may do {' '.join(settings.allow)}{denied}, as far as the account may"


# --- NATS -------------------------------------------------------------------------------------


async def _check_nats(cluster: str, access: NatsAccess) -> Finding:
    try:
        async with asyncio.timeout(_WITHIN.total_seconds()):
            async with connected(access, name=f"agent.{cluster}") as bus:
                await _use_subjects(bus, cluster)
                version = bus.nc.connected_server_version
                text = f"{access.shown}: nats-server {version.major}.{version.minor}"
                return Finding(_NATS, Severity.OK, f"{text}; calls for {cluster} may be taken")
    except TimeoutError:
        return Finding(_NATS, Severity.ERROR, *await _why_no_answer(access))
    except BusError as e:
        advice = (
            f"if credentials or a subject are refused, they are not those of {cluster}, or were"
            " revoked: ask the hub for `fleetbus join --agent`"
        )
        return Finding(_NATS, Severity.ERROR, str(e), advice)


async def _use_subjects(bus: Bus, cluster: str) -> None:
    """Use the subjects of an agent.

    Raises:
        BusError: the server forbids one.
    """
    instance = secrets.token_hex(8)
    calls, answers = (
        api_subject(cluster, instance),
        answers_subject(cluster, f"doctor.{instance}.1"),
    )
    async with (
        bus.refusals.until_refused(calls, is_answered=False),
        bus.refusals.until_refused(answers, is_answered=False),
        subscribed(bus, calls, _ignore),
    ):
        await bus.nc.publish(answers, b"")
        await bus.nc.flush()  # a refusal comes before the answer to this
        await asyncio.sleep(0)


async def _ignore(_: object) -> None:
    """Take no call: nobody knows this instance."""


async def _why_no_answer(access: NatsAccess) -> tuple[str, str]:
    """Find what is wrong with the way to NATS, and the advice for it."""
    problems: list[str] = []
    for address in access.url.split(","):
        parts = urllib.parse.urlsplit(address.strip())
        host, port = parts.hostname or "", parts.port or _NATS_PORT
        try:
            async with asyncio.timeout(_WITHIN.total_seconds()):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
            problems.append(f"{host}:{port} accepts connections, but no NATS server answers there")
        except TimeoutError:
            problems.append(f"{host}:{port} does not answer: a firewall drops the packets?")
        except OSError as e:
            problems.append(f"{host}:{port}: {e.strerror or e}")
    advice = "check FLEETBUS_NATS_URL, the name service, and that this network lets us out"
    return "; ".join(problems), advice


# --- the API server -----------------------------------------------------------------------------


async def _check_server(
    settings: AgentSettings, access: NatsAccess, config: KubeConfig | None
) -> AsyncIterator[Finding]:
    server = MemberServer(config)
    try:
        await server.learn()
        response = await server.send(Call("GET", "/version"), Limits(total=_WITHIN), "")
        headers = dict(response.headers)
        response.release()
    except (Unauthorized, Forbidden) as e:
        advice = "the agent's account must be valid, and may get the namespace kube-system"
        yield Finding(_SERVER, Severity.ERROR, str(e), advice)
        return
    except KubeError as e:
        advice = "check its address and certificate, and that it runs"
        yield Finding(_SERVER, Severity.ERROR, str(e), advice)
        return
    finally:
        await server.close()
    yield Finding(_SERVER, Severity.OK, f"answers; kube-system has UID {server.uid}")
    if (finding := check_clock(headers, datetime.now(UTC))) is not None:
        yield finding
    if settings.secret:
        async for finding in check_nkey(settings, access, config, server.uid):
            yield finding
    async for finding in _check_rights(config):
        yield finding


def check_clock(headers: Mapping[str, str], now: datetime) -> Finding | None:
    """Compare our clock with the API server's; None if it does not tell its time."""
    date = next((value for name, value in headers.items() if name.lower() == "date"), "")
    try:
        time = parsedate_to_datetime(date)
    except ValueError:
        return None
    ahead = now - (time if time.tzinfo else time.replace(tzinfo=UTC))
    if abs(ahead) <= _SKEW_SHOWN:
        return Finding(_CLOCK, Severity.OK, "agrees with the API server's")
    way = "ahead of" if ahead > timedelta() else "behind"
    text = f"{abs(ahead).total_seconds():.0f} s {way} the API server's"
    severity = Severity.ERROR if abs(ahead) > _SKEW_WRONG else Severity.WARNING
    return Finding(_CLOCK, severity, text, "set the clocks of the nodes, for example with NTP")


async def _check_rights(config: KubeConfig | None) -> AsyncIterator[Finding]:
    required = rights_of(watcher_rules([]))
    try:
        async with KubeClient(config) as client:
            missing = await missing_rights(client, [*required, _EVERYTHING])
    except KubeError as e:
        advice = "the account must be allowed to create selfsubjectaccessreviews"
        yield Finding(_RIGHTS, Severity.ERROR, str(e), advice)
        return
    for right in missing:
        if right != _EVERYTHING:
            advice = "add it to the ClusterRole of the agent's account"
            yield Finding(_RIGHTS, Severity.ERROR, f"the account may not {right}", advice)
    if _EVERYTHING in missing:
        text = "the account has some rights; `fleetbus doctor` on the hub names those it lacks"
        yield Finding(_RIGHTS, Severity.OK, text)
    else:
        yield Finding(_RIGHTS, Severity.OK, "the account may do everything")
