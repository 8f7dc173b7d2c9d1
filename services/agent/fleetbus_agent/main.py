"""The agent service: composition root."""

from __future__ import annotations

import argparse
import asyncio
import functools
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final

import structlog
import uvloop

from fleetbus.bus.connection import Bus
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, wait_for_kube_config
from fleetbus.process.access.secret_files import SecretFile
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.log_levels import follow_levels
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings, tell_unknown_settings
from fleetbus_agent import metrics
from fleetbus_agent.connections import Connections
from fleetbus_agent.doctor import run_doctor
from fleetbus_agent.enrolment.enrolment import (
    REGISTRATION_FILE,
    Enrolment,
    EnrolmentTiming,
    enrolled,
)
from fleetbus_agent.enrolment.enrolment import USUAL as USUAL_ENROLMENT
from fleetbus_agent.enrolment.seeds import SeedSecret
from fleetbus_agent.gateway import USUAL, Gateway, Times
from fleetbus_agent.load import Load
from fleetbus_agent.member_server import MemberServer, learn_patiently
from fleetbus_agent.settings import AgentSettings

log = structlog.get_logger()

_HANGS_AFTER: Final = timedelta(minutes=1)
_PAUSE: Final = timedelta(seconds=5)


async def run(
    settings: AgentSettings,
    shared: SharedSettings,
    *,
    health: Health | None = None,
    times: Times = USUAL,
    timing: EnrolmentTiming = USUAL_ENROLMENT,
) -> None:
    """Serve calls until cancelled.

    Args:
        settings: which cluster this is, and what the hub may do in it.
        shared: how to reach NATS.
        health: checks of the process; made here if it is not given.
        times: the times of the gateways.
        timing: pauses and limits of the enrolment; the setting `rotation` replaces its own.

    Raises:
        ConfigError: the kubeconfig cannot be used.
        BusError: NATS forbids a subject (rule B13).
    """
    checks = health or Health()
    started = checks.starting()
    metrics.create()
    async with checks.serve(shared.health_host, shared.health_port, shared.health_port_file):
        config = None
        if settings.kubeconfig is not None:
            config = await wait_for_kube_config(
                settings.kubeconfig, settings.context, name="kubeconfig", health=checks
            )
        server = MemberServer(config)
        checks.ready_when("api server", server.trouble)
        load = Load(settings.max_calls)
        # Not before there is a connection, which may be long after the start.
        make_beat = functools.cache(lambda: checks.liveness("gateway", _HANGS_AFTER))

        def make_gateway(bus: Bus) -> Gateway:
            return Gateway(
                bus=bus, settings=settings, server=server, load=load, beat=make_beat(), times=times
            )

        try:
            async with (
                _enrolled(settings, shared, config, checks, timing) as renewed,
                asyncio.TaskGroup() as group,
            ):
                connections = Connections(
                    access=shared.nats,
                    name=f"agent.{settings.cluster}",
                    make_gateway=make_gateway,
                    renewed=renewed,
                    health=checks,
                )
                group.create_task(connections.run(), name="connections")
                group.create_task(learn_patiently(server, pause=_PAUSE), name="api server")
                await connections.opened.wait()
                started()
                log.info("agent_started", cluster=settings.cluster)
        finally:
            await server.close()


@asynccontextmanager
async def _enrolled(
    settings: AgentSettings,
    shared: SharedSettings,
    config: KubeConfig | None,
    checks: Health,
    timing: EnrolmentTiming,
) -> AsyncGenerator[asyncio.Event]:
    """Have an nkey that the hub has accepted, if the agent keeps one.

    Yields:
        An event that is set when the nkey has been replaced.
    """
    if not settings.secret:
        yield asyncio.Event()
        return
    one_time = settings.registration_file
    async with KubeClient(config) as client:
        enrolment = Enrolment(
            cluster=settings.cluster,
            access=shared.nats,
            registration=SecretFile(REGISTRATION_FILE, one_time) if one_time else None,
            secret=SeedSecret(client, settings.secret),
            read_uid=client.kube_system_uid,
            instance=socket.gethostname(),
            timing=replace(timing, rotation=settings.rotation),
        )
        async with enrolled(enrolment, checks):
            yield enrolment.renewed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `fleetbus-agent`."""
    parser = argparse.ArgumentParser(
        prog="fleetbus-agent",
        description="Lets the hub call the API server of this cluster, over NATS; settings are"
        " environment variables FLEETBUS_… and FLEETBUS_AGENT_….",
    )
    parser.add_argument(
        "command", nargs="?", choices=["doctor"], help="only say what keeps it from working"
    )
    if parser.parse_args(argv).command == "doctor":
        statuses: list[int] = []
        failed = run_service("fleetbus-agent", lambda: _doctor(statuses), is_command=True)
        return failed or max(statuses, default=0)
    return run_service("fleetbus-agent", _main, loop_factory=uvloop.new_event_loop)


async def _doctor(statuses: list[int]) -> None:
    shared = load_settings(SharedSettings)
    settings = load_settings(AgentSettings)
    set_up_logs("text", "error")  # what a log would say is a finding here
    statuses.append(await run_doctor(settings, shared))


async def _main() -> None:
    shared = load_settings(SharedSettings)
    settings = load_settings(AgentSettings)
    set_up_logs(shared.log_format, shared.log_level)
    # A misspelt setting that denies something would leave it allowed.
    tell_unknown_settings(AgentSettings)
    levels = follow_levels(shared.log_levels_file)
    await run_until_stopped(agent=run(settings, shared), levels=levels)
