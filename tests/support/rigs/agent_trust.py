"""A hub with the chart's NATS, a registrar and a reloader, and agents that join it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetbus.agents.accounts import render_accounts
from fleetbus.agents.nkeys import make_seed, public_key, sign
from fleetbus.agents.records import AgentRecord, read_record, record_secret
from fleetbus.bus.connection import Bus, connected
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import SecretFile, TlsFiles
from fleetbus.process.clock import rfc3339
from fleetbus.process.health import Health
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_agent.enrolment.enrolment import Enrolment, EnrolmentTiming
from fleetbus_agent.enrolment.seeds import SeedSecret, write_seed
from fleetbus_agent.main import run
from fleetbus_agent.settings import AgentSettings
from fleetbus_proto.registration import (
    REGISTRATION,
    Registration,
    RegistrationAnswer,
    SignedRegistration,
    decode_answer,
    encode_registration,
)
from fleetbus_proto.subjects import registration_subject
from fleetbus_reconciler.agents.registrar import Registrar
from fleetbus_reconciler.agents.reloader import NatsServer, Reloader
from support.api.rendered_chart import SEED, VALUES, Object
from support.eventually import eventually
from support.servers.rendered_servers import RenderedNats, rendered_nats

if TYPE_CHECKING:
    from fleetbus_emulator.fleet import EmulatedFleet

RECORDS = "fleetbus-clusters"
ACCOUNTS = "fleetbus/fb-fleetbus-nats-agents"
MEMBER_SECRET = "fleetbus-agent/fleetbus-agent-nkey"
CHART: Object = {
    **VALUES["everything"],
    "credentials": {"seed": SEED},
    "agents": {"enabled": True},
}
QUICK = EnrolmentTiming(
    checks=timedelta(milliseconds=100),
    retry=timedelta(milliseconds=100),
    login=timedelta(seconds=10),
    drop_after=timedelta(),
)


@dataclass
class TrustRig:
    """The hub, its NATS, and the folder of seeds."""

    fleet: EmulatedFleet
    config: KubeConfig
    server: RenderedNats
    folder: Path
    projector: Bus
    reloader: Reloader
    approval: bool = False
    later: timedelta = timedelta()
    """By how much the registrars' clocks are ahead."""
    registrars: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later

    def registrar(self, bus: Bus | None = None) -> Registrar:
        return Registrar(
            hub=self.config,
            bus=bus or self.projector,
            clusters=Clusters([]),
            namespace=RECORDS,
            accounts=ACCOUNTS,
            approval=self.approval,
            now=self.now,
        )

    def is_loaded(self) -> bool:
        """Whether the server has loaded the accounts of all records, imports included."""
        secrets = self.fleet["hub"].list("v1/secrets", RECORDS)
        text = render_accounts(map(read_record, secrets), self.now())
        return self.reloader.loaded == text.encode()

    # --- the hub ---------------------------------------------------------------------------------

    def join(self, cluster: str, expires: timedelta = timedelta(hours=1)) -> str:
        """Write the record of a join; returns the one-time seed."""
        seed = make_seed()
        end = rfc3339(datetime.now(UTC) + expires, timespec="seconds")
        self.write(AgentRecord(cluster=cluster, one_time=public_key(seed), expires=end))
        return seed

    def write(self, record: AgentRecord) -> None:
        obj = record_secret(record, RECORDS)
        if self.fleet["hub"].get("v1/secrets", RECORDS, record.name) is not None:
            self.unjoin(record.cluster)
        self.fleet["hub"].create("v1/secrets", obj)

    def unjoin(self, cluster: str) -> None:
        self.fleet["hub"].delete("v1/secrets", RECORDS, f"{cluster}-agent")

    async def registered(self, cluster: str) -> str:
        """Register an agent by hand; returns its seed, which may log in."""
        one_time, seed = self.join(cluster), make_seed()
        async with self.login(one_time, f"registration.{cluster}") as bus:
            answer = await self.register(bus, cluster, one_time, seed)
        assert answer.state == "accepted", answer
        await self.works(seed, cluster)
        return seed

    # --- agents ----------------------------------------------------------------------------------

    def access(self, seed: str, name: str = "seed") -> NatsAccess:
        path = self.folder / f"{name}.nkey"
        write_seed(path, seed)
        return self._access(path)

    def _access(self, nkey: Path) -> NatsAccess:
        ca = self.server.ca
        return NatsAccess(
            url=self.server.address,
            nkey=SecretFile("FLEETBUS_NATS_NKEY_FILE", nkey),
            tls=TlsFiles(ca=SecretFile("FLEETBUS_NATS_CA_FILE", ca) if ca else None),
        )

    @asynccontextmanager
    async def login(self, seed: str, name: str) -> AsyncGenerator[Bus]:
        """Log in with a seed once the server knows it; an answer may be lost in a reload."""
        await eventually(self.is_loaded)
        async with AsyncExitStack() as stack:

            async def connect() -> Bus | None:
                try:
                    return await stack.enter_async_context(
                        connected(self.access(seed, public_key(seed)), name=name)
                    )
                except BusError:
                    return None

            bus = await eventually(connect)
            assert isinstance(bus, Bus)
            yield bus

    async def is_known(self, seed: str) -> bool:
        """Whether one may log in with a seed now."""
        try:
            async with connected(self.access(seed, public_key(seed)), name="probe"):
                return True
        except BusError:
            return False

    async def works(self, seed: str, cluster: str) -> None:
        """Wait until an agent gets calls, which its account imports."""
        async with self.login(seed, f"agent.{cluster}") as bus:
            subscription = await bus.nc.subscribe(f"fleetbus.api.{cluster}", queue="agents")

            async def is_called() -> bool:
                await self.projector.publish(f"fleetbus.api.{cluster}", b"?")
                await self.projector.nc.flush()
                await bus.nc.flush()
                return subscription.pending_msgs > 0

            await eventually(is_called)

    async def register(
        self, bus: Bus, cluster: str, signer: str, seed: str, **changes: Any
    ) -> RegistrationAnswer:
        """Send a registration; `changes` replace what is sent."""
        return await self.send(bus, cluster, signed(cluster, signer, seed, **changes))

    async def send(self, bus: Bus, cluster: str, body: bytes) -> RegistrationAnswer:
        await eventually(self.is_loaded)
        answer = decode_answer((await bus.request(registration_subject(cluster), body)).data)
        assert answer is not None
        return answer

    @asynccontextmanager
    async def enrolment(
        self,
        cluster: str,
        one_time: str,
        *,
        replica: str = "a",
        timing: EnrolmentTiming = QUICK,
        **options: Any,
    ) -> AsyncGenerator[Enrolment]:
        """An agent's own part, with a Secret in the emulated member."""
        path = self.folder / f"{cluster}-{replica}.one-time"
        write_seed(path, one_time)
        config = read_kube_config(self.fleet.kubeconfig, cluster)
        async with KubeClient(config) as client:
            yield Enrolment(
                cluster=cluster,
                access=self._access(self.nkey_file(cluster, replica)),
                registration=SecretFile("FLEETBUS_AGENT_REGISTRATION_FILE", path),
                secret=SeedSecret(client, MEMBER_SECRET),
                instance=f"agent-{replica}",
                timing=timing,
                **options,
            )

    @asynccontextmanager
    async def agent(
        self, cluster: str, one_time: str, *, timing: EnrolmentTiming = QUICK
    ) -> AsyncGenerator[None]:
        """A whole agent, which joins, serves calls and rotates; ready when this yields."""
        path = self.folder / f"{cluster}-agent.one-time"
        write_seed(path, one_time)
        settings = load_settings(
            AgentSettings,
            cluster=cluster,
            kubeconfig=self.fleet.kubeconfig,
            context=cluster,
            secret=MEMBER_SECRET,
            registration_file=path,
        )
        shared = SharedSettings(
            nats_url=self.server.address,
            nats_nkey_file=self.nkey_file(cluster, "agent"),
            nats_ca_file=self.server.ca,
            health_port=0,
        )
        health = Health()
        running = asyncio.create_task(run(settings, shared, health=health, timing=timing))
        try:
            await asyncio.sleep(0)  # its first step registers its checks
            await eventually(lambda: running.done() or health.is_ready, timedelta(seconds=30))
            yield
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def nkey_file(self, cluster: str, replica: str = "a") -> Path:
        return self.folder / f"{cluster}-{replica}.nkey"


def signed(cluster: str, signer: str, seed: str, **changes: Any) -> bytes:
    """The body of a registration; `changes` replace fields of what is sent."""
    body = encode_registration(Registration(cluster=cluster, key=public_key(seed)))
    message = REGISTRATION.encode() + body
    fields: dict[str, Any] = {
        "body": body,
        "signed_by": public_key(signer),
        "signature": sign(signer, message),
        "proof": sign(seed, message),
    }
    return encode_registration(SignedRegistration(**(fields | changes)))


def monitor_of(folder: Path) -> str:
    (ports,) = folder.glob("*.ports")
    return str(json.loads(ports.read_text())["monitoring"][0])


@asynccontextmanager
async def trust_rig(
    fleet: EmulatedFleet, folder: Path, members: Sequence[str] = (), *, approval: bool = False
) -> AsyncGenerator[TrustRig]:
    """Run NATS, one registrar with the rights of the chart's projector, and the reloader."""
    hub = fleet["hub"]
    for name in (RECORDS, "fleetbus"):
        hub.create("v1/namespaces", {"metadata": {"name": name}})
    namespace, _, name = ACCOUNTS.partition("/")
    hub.create("v1/secrets", {"metadata": {"name": name, "namespace": namespace}})
    for member in members:
        namespace, _, name = MEMBER_SECRET.partition("/")
        fleet[member].create("v1/namespaces", {"metadata": {"name": namespace}})
        fleet[member].create("v1/secrets", {"metadata": {"name": name, "namespace": namespace}})
    config = read_kube_config(fleet.kubeconfig, "hub")
    async with (
        rendered_nats(CHART, folder) as server,
        connected(server.access("projector"), name="projector") as bus,
    ):
        running_server = NatsServer(
            file=folder / "agents.conf",
            pid_file=folder / "nats.pid",
            monitor=monitor_of(folder),
            within=timedelta(seconds=2),
        )
        reloader = Reloader(hub=config, secret=ACCOUNTS, server=running_server)
        rig = TrustRig(fleet, config, server, folder, bus, reloader, approval)
        loops = [
            asyncio.create_task(rig.registrar().run(), name="registrar"),
            asyncio.create_task(reloader.run(), name="reloader"),
        ]
        try:
            yield rig
            assert not any(loop.done() for loop in loops)
            assert not bus.has_failed
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
