"""Registers an agent with the hub, and changes its nkey by itself.

The seed is made in the member and stays there. The one-time nkey of the join signs the first
registration; later the current nkey signs the next. A rotation has four steps, each of which can be
repeated after a crash: the next seed is stored, its public key is sent to the hub, it is used once
it can log in, and the hub is asked to drop the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import structlog

from fleetbus.agents.nkeys import make_seed, public_key, sign
from fleetbus.bus.connection import Bus, NoAnswer, NoStream, connected
from fleetbus.errors import BusError, ConfigError, Conflict, FleetbusError
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import SecretFile
from fleetbus.process.clock import rfc3339
from fleetbus.process.log_once import LogOnce
from fleetbus_agent.enrolment.seeds import Seeds, SeedSecret, age_of, write_seed
from fleetbus_proto.registration import (
    ACCEPTED,
    PENDING,
    REGISTRATION,
    Registration,
    RegistrationAnswer,
    SignedRegistration,
    decode_answer,
    encode_registration,
)
from fleetbus_proto.subjects import registration_subject

if TYPE_CHECKING:
    from fleetbus.process.health import Health

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentTiming:
    """Pauses and limits of an agent's enrolment."""

    rotation: timedelta = timedelta(days=30)
    """The age at which a seed is replaced."""
    checks: timedelta = timedelta(seconds=15)
    """Interval at which the Secret is read: another replica may have replaced the seed."""
    retry: timedelta = timedelta(seconds=3)
    """The pause after an attempt to register."""
    login: timedelta = timedelta(seconds=15)
    """The time that a login and a request may take."""
    drop_after: timedelta = timedelta(seconds=180)
    """The hub drops the seed before after this long: all processes have read the new one by then,
    and the calls that began on a connection with the one before have ended."""


USUAL: Final = EnrolmentTiming()
REGISTRATION_FILE: Final = "FLEETBUS_AGENT_REGISTRATION_FILE"
"""The setting that names the file with the one-time seed."""


async def _no_uid() -> str:
    return ""


class NotEnrolled(FleetbusError):
    """The hub has not accepted the agent yet; says why, and who has to do what."""


class Enrolment:
    """The nkey of one agent.

    Args:
        cluster: its name in the fleet.
        access: how the agent logs in to NATS; its nkey file is written here.
        registration: the seed of the one-time nkey; None where the agent has been registered.
        secret: where the seed is kept.
        read_uid: reads the UID of kube-system of this cluster, which the hub compares with the
            accepted one (rule W13).
        instance: name of this process, for people.
        timing: pauses and limits.
        now: the time.
    """

    def __init__(
        self,
        *,
        cluster: str,
        access: NatsAccess,
        registration: SecretFile | None,
        secret: SeedSecret,
        read_uid: Callable[[], Awaitable[str]] = _no_uid,
        instance: str = "",
        timing: EnrolmentTiming = USUAL,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if access.nkey is None:
            raise ConfigError(
                "setting FLEETBUS_NATS_NKEY_FILE is missing: the nkey is written there"
            )
        self._cluster = cluster
        self._access = access
        self._file = access.nkey
        self._registration = registration
        self._secret = secret
        self._read_uid = read_uid
        self._instance = instance
        self._timing = timing
        self._now = now
        self._written = ""
        self._log_once = LogOnce()
        self.trouble = "not registered yet"
        """Why the agent cannot log in yet; empty if it can."""
        self.renewed = asyncio.Event()
        """Set when the file has another nkey than before; whoever follows it clears it."""

    async def ensure(self) -> None:
        """Register unless that is done, wait until the hub has accepted it, and write the file."""
        while True:
            try:
                await self._register(await self._secret.read())
            except (FleetbusError, TimeoutError) as e:
                self._report(str(e) or "the hub does not answer")
            else:
                self.trouble = ""
                return
            await asyncio.sleep(self._timing.retry.total_seconds())

    async def run(self) -> None:
        """Rotate, and follow what other replicas rotate, until cancelled."""
        while True:
            await asyncio.sleep(self._timing.checks.total_seconds())
            try:
                await self.check()
            except (FleetbusError, TimeoutError) as e:
                if self._log_once.should_log(str(e), "rotation"):
                    log.warning("agent_nkey_not_rotated", error=str(e) or "the hub does not answer")
            else:
                self._log_once.reset("rotation")

    async def check(self) -> None:
        """Do what is due once: write a seed that another replica stored, or rotate.

        Raises:
            FleetbusError: a step failed; the next check repeats it.
            TimeoutError: the hub does not answer.
        """
        seeds = await self._secret.read()
        if not seeds.seed:
            raise ConfigError("the Secret has lost the seed of the agent: restart it to register")
        self._use(seeds)
        if not seeds.is_confirmed:
            await self._confirm(seeds)
        elif seeds.next_seed or age_of(seeds, self._now()) >= self._timing.rotation.total_seconds():
            await self._rotate(seeds)

    # --- registering ----------------------------------------------------------------------------

    async def _register(self, seeds: Seeds) -> None:
        one_time = public_key(self._registration.read()) if self._registration is not None else ""
        if one_time not in ("", seeds.one_time):
            # The cluster was joined anew: what was accepted before may have been revoked.
            new = Seeds(seed=make_seed(), one_time=one_time, version=seeds.version)
            seeds = await self._secret.write(new)
        if not seeds.seed:
            raise NotEnrolled("no one-time nkey is given, and the agent has no nkey of its own")
        if not seeds.is_registered:
            seeds = await self._register_anew(seeds)
        self._use(seeds)

    async def _register_anew(self, seeds: Seeds) -> Seeds:
        refusal = await self._ask_to_register(seeds)
        # An answer may have been lost, and somebody may have accepted it meanwhile.
        try:
            async with self._login(seeds.seed):
                pass
        except BusError as e:
            raise NotEnrolled(refusal or f"registered, but cannot log in yet: {e}") from e
        own = public_key(seeds.seed)
        now = rfc3339(self._now(), timespec="seconds")
        uid = await self._read_uid()
        seeds = replace(seeds, registered=own, confirmed=own, since=now, cluster_uid=uid)
        log.info("agent_registered", cluster=self._cluster, nkey=own)
        return await self._secret.write(seeds)

    async def _ask_to_register(self, seeds: Seeds) -> str:
        """Send the registration; returns why it is not accepted, or not yet."""
        if self._registration is None:
            return "no one-time nkey is given"
        one_time = self._registration.read()
        try:
            async with self._login(one_time, "registration") as bus:
                answer = await self._send(bus, one_time, seeds.seed)
        except (NoAnswer, NoStream) as e:
            return f"the hub does not answer the registration: {e}"
        except BusError as e:
            return (
                f"neither the agent's nkey nor the one-time nkey can log in: {e}; the registration"
                " has expired, was used or revoked, or waits for `fleetbus clusters accept"
                f" {self._cluster}` on the hub; `fleetbus join {self._cluster} --agent` there makes"
                " a new one"
            )
        if answer.state == ACCEPTED:
            return ""
        word = "waits" if answer.state == PENDING else "is refused"
        return f"the registration {word}: {answer.message}"

    def _report(self, trouble: str) -> None:
        self.trouble = trouble
        if self._log_once.should_log(trouble, "registration"):
            log.warning("agent_not_registered", cluster=self._cluster, error=trouble)

    # --- rotating -------------------------------------------------------------------------------

    async def _rotate(self, seeds: Seeds) -> None:
        if not seeds.next_seed:
            try:
                seeds = await self._secret.write(replace(seeds, next_seed=make_seed()))
            except Conflict:  # another replica rotates
                return
        async with self._login(seeds.seed) as bus:
            answer = await self._send(bus, seeds.seed, seeds.next_seed)
        if answer.state != ACCEPTED:
            raise NotEnrolled(f"the next nkey is refused: {answer.message}")
        await self._wait_for_login(seeds.next_seed)
        now = rfc3339(self._now(), timespec="seconds")
        own = public_key(seeds.next_seed)
        try:
            seeds = await self._secret.write(
                replace(seeds, seed=seeds.next_seed, next_seed="", since=now, registered=own)
            )
        except Conflict:
            return
        self._use(seeds)
        log.info("agent_nkey_rotated", cluster=self._cluster, nkey=own)

    async def _confirm(self, seeds: Seeds) -> None:
        """Tell the hub that the seed is in use, so that it drops the one before."""
        if age_of(seeds, self._now()) < self._timing.drop_after.total_seconds():
            return
        async with self._login(seeds.seed) as bus:
            answer = await self._send(bus, seeds.seed, seeds.seed)
        if answer.state != ACCEPTED:
            raise NotEnrolled(f"the nkey is refused: {answer.message}")
        try:
            await self._secret.write(replace(seeds, confirmed=public_key(seeds.seed)))
        except Conflict:
            return

    async def _wait_for_login(self, seed: str) -> None:
        """Wait until the servers know a seed."""
        async with asyncio.timeout(self._timing.login.total_seconds()):
            while True:
                try:
                    async with self._login(seed):
                        return
                except BusError:
                    await asyncio.sleep(min(self._timing.retry.total_seconds(), 1))

    # --- both -----------------------------------------------------------------------------------

    def _login(self, seed: str, name: str = "agent") -> AbstractAsyncContextManager[Bus]:
        within = self._timing.login
        return logged_in(self._access, seed, name=f"{name}.{self._cluster}", within=within)

    async def _send(self, bus: Bus, signer: str, seed: str) -> RegistrationAnswer:
        """Tell the hub the public key of a seed, signed by another.

        Raises:
            BusError: nobody answers.
        """
        body = encode_registration(
            Registration(
                cluster=self._cluster,
                key=public_key(seed),
                uid=await self._read_uid(),
                instance=self._instance,
            )
        )
        message = REGISTRATION.encode() + body
        signed = SignedRegistration(
            body=body,
            signed_by=public_key(signer),
            signature=sign(signer, message),
            proof=sign(seed, message),
        )
        answer = await bus.request(registration_subject(self._cluster), encode_registration(signed))
        decoded = decode_answer(answer.data)
        if decoded is None:
            raise BusError("the hub's answer to the registration cannot be read")
        return decoded

    def _use(self, seeds: Seeds) -> None:
        """Write the seed for those who log in with the file."""
        if seeds.seed != self._written or not self._file.path.exists():
            write_seed(self._file.path, seeds.seed)
            if self._written not in ("", seeds.seed):
                self.renewed.set()
            self._written = seeds.seed


@asynccontextmanager
async def logged_in(
    access: NatsAccess, seed: str, *, name: str, within: timedelta, suffix: str = ""
) -> AsyncGenerator[Bus]:
    """Connect with a seed, which is beside the nkey file meanwhile.

    Args:
        access: the address, and the file of the agent's nkey.
        seed: to log in with.
        name: of the connection.
        within: the limit for the login and the block.
        suffix: of the file, for a process beside the agent.

    Raises:
        BusError: the server refuses it.
        ConfigError: the file cannot be written, or none is set.
        TimeoutError: it does not answer.
    """
    if access.nkey is None:
        raise ConfigError("setting FLEETBUS_NATS_NKEY_FILE is missing: the nkey is written there")
    path = access.nkey.path.with_name(f".{access.nkey.path.name}.{name}{suffix}")
    write_seed(path, seed)
    own = replace(access, nkey=SecretFile(access.nkey.setting, path), inbox_prefix="")
    try:
        async with asyncio.timeout(within.total_seconds()), connected(own, name=name) as bus:
            yield bus
    finally:
        path.unlink(missing_ok=True)


@asynccontextmanager
async def enrolled(enrolment: Enrolment, health: Health | None = None) -> AsyncGenerator[None]:
    """Wait until the agent can log in, and rotate its nkey during the block."""
    if health is not None:
        health.ready_when("enrolment", lambda: enrolment.trouble)
    await enrolment.ensure()
    rotating = asyncio.create_task(enrolment.run(), name="rotate the agent's nkey")
    try:
        yield
    finally:
        rotating.cancel()
        await asyncio.wait([rotating])
