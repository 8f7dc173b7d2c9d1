"""`fleetbus clusters nats-config`: what it prints lets agents in on a real nats-server."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from nats.aio.msg import Msg
from typer.testing import CliRunner

from fleetbus.agents.accounts import render_accounts
from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import AgentRecord
from fleetbus.bus.connection import connected
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import SecretFile
from fleetbus_agent.enrolment.seeds import write_seed
from fleetbus_cli.app import app
from support.eventually import eventually
from support.servers.identities import secured_nats


async def test_an_agent_gets_the_calls_of_its_cluster_and_answers_them(tmp_path: Path):
    result = CliRunner().invoke(app, ["clusters", "nats-config"])
    assert result.exit_code == 0, result.output
    seed, nkey = make_seed(), tmp_path / "nkey"
    write_seed(nkey, seed)
    record = AgentRecord(cluster="eu1", key=public_key(seed))
    folder = tmp_path / "nats"
    folder.mkdir()
    (folder / "agents.conf").write_text(render_accounts([record], datetime.now(UTC)))
    config = result.output.replace("users: []", "users: [{user: hub, password: pass}]")
    assert len(re.findall("service:|stream:", config)) > 8
    async with secured_nats(folder, config) as nats:
        agent_access = NatsAccess(
            url=nats.address, nkey=SecretFile("FLEETBUS_NATS_NKEY_FILE", nkey)
        )
        hub_address = nats.address.replace("//", "//hub:pass@")
        async with (
            connected(hub_address, name="hub") as hub,
            connected(agent_access, name="agent.eu1") as agent,
        ):

            async def answer(_: Msg) -> None:
                await agent.publish("fleetbus.answers.eu1.test.1.1", b"answer")

            answers: list[bytes] = []

            async def note(message: Msg) -> None:
                answers.append(message.data)

            await agent.nc.subscribe("fleetbus.api.eu1", queue="agents", cb=answer)
            await agent.nc.flush()
            await hub.nc.subscribe("fleetbus.answers.*.test.>", cb=note)
            await hub.publish("fleetbus.api.eu1", b"call")
            await eventually(lambda: answers == [b"answer"])
