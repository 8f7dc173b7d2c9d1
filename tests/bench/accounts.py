"""Publishing from an account of its own, as the chart gives one to each watcher of one cluster.

    python tests/run.py bench.accounts [--seconds 4] [--json]

A watcher's window of events is published into the stream by a user of the stream's account, which
is the baseline, and in turn by a user of another account that imports the subject as a service:
with one server and with three, without and with TLS. For each: messages per second, CPU of all
servers and of the client per message, and the time of one message alone.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from bench.rig.command import run_command
from bench.rig.processes import cpu_seconds
from fleetbus.bus.acks import Ack
from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import StreamLimits, ensure_stream
from fleetbus.bus.window import Window, open_window
from fleetbus.process.access.nats import NatsAccess, nats_access
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto import codec, headers, subjects
from support.eventually import eventually
from support.servers.identities import Authority, secured_nats
from support.servers.nats_cluster import nats_cluster
from support.wire.samples import MESSAGE_KEY, event

_WATCHER = "fleetbus.events.eu1.>"
_PASSWORD = "secret"
_MEMBERS = ("n1", "n2", "n3")
_ROUNDS = 2
"""Rounds of each user in turn, so that other work on the machine meets both."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    seconds: float = 4
    """For each user, with a full window."""
    alone: int = 500
    """Messages that are sent one at a time."""
    object_bytes: int = 1_000


TINY = Sizes(seconds=0.1, alone=5)


@dataclass
class Servers:
    """A running server, or three, and how to connect as a user."""

    address: str
    pids: Sequence[int]
    ca: Path | None

    def access(self, user: str) -> NatsAccess:
        scheme = "tls" if self.ca else "nats"
        urls = [f"{scheme}://{user}:{_PASSWORD}@{place}" for place in self.address.split(",")]
        return nats_access({"url": ",".join(urls), "ca_file": self.ca})

    def cpu(self) -> float:
        return sum(map(cpu_seconds, self.pids))


def accounts(tls: str) -> str:
    """The configuration: `inside` shares the account of the stream, `guest` imports the subject."""

    def user(name: str) -> str:
        rights = (
            f'publish: {{ allow: ["{_WATCHER}"] }}, subscribe: {{ allow: ["_INBOX.{name}.>"] }}'
        )
        return f"{{ user: {name}, password: {_PASSWORD}, permissions: {{ {rights} }} }}"

    return (
        f"accounts {{\n"
        f"hub {{ jetstream: enabled, users: [{{ user: hub, password: {_PASSWORD} }},"
        f' {user("inside")}], exports: [{{ service: "{_WATCHER}", accounts: [guest] }}] }}\n'
        f"guest {{ users: [{user('guest')}],"
        f' imports: [{{ service: {{ account: hub, subject: "{_WATCHER}" }} }}] }}\n'
        f"}}\n{tls}\n"
    )


@asynccontextmanager
async def running(folder: Path, replicas: int, *, is_tls: bool) -> AsyncGenerator[Servers]:
    ca, tls = None, ""
    if is_tls:
        authority = Authority(folder / "ca")
        cert, key = authority.issue("nats")
        ca, tls = authority.ca, f'tls {{ cert_file: "{cert}", key_file: "{key}" }}'
    if replicas == 1:
        async with secured_nats(folder / "nats", accounts(tls)) as nats:
            place = nats.address.removeprefix("nats://")
            yield Servers(place, [nats.server.pid], ca)
        return
    async with nats_cluster(folder / "nats", _MEMBERS[:replicas], more=accounts(tls)) as cluster:
        await cluster.healthy()
        members = cluster.members.values()
        places = ",".join(member.address for member in members)
        yield Servers(places, [member.child.pid for member in members], ca)


@dataclass
class Publisher:
    """Publishes events of a watcher, and counts those that are stored."""

    window: Window
    body: bytes
    numbers: Iterator[int]
    stored: int = 0
    refused: list[Ack] = field(default_factory=list[Ack])

    def _settle(self, ack: Ack) -> None:
        if ack.error is None:
            self.stored += 1
        else:
            self.refused.append(ack)

    def _next(self) -> tuple[str, dict[str, str]]:
        number = next(self.numbers)
        name = f"web-{number % 1000}"
        subject = subjects.event_subject(
            "eu1", "apps", "deployments", "prod", name, subjects.Verb.MODIFIED
        )
        return subject, headers.build(event(name=name, resource_version=str(number)), MESSAGE_KEY)

    async def fill(self, seconds: float) -> float:
        """Publish for so long, until all is stored; returns the time that took."""
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            for _ in range(100):
                subject, fields = self._next()
                await self.window.publish(subject, self.body, fields, self._settle)
        await eventually(lambda: not self.window.in_flight)
        assert not self.refused, self.refused[0]
        return time.perf_counter() - started

    async def time_alone(self, messages: int) -> float:
        """The median of the time until one message is stored, in milliseconds."""
        times: list[float] = []
        for _ in range(messages):
            subject, fields = self._next()
            started = time.perf_counter()
            ack = await self.window.send(subject, self.body, fields)
            times.append((time.perf_counter() - started) * 1e3)
            assert ack.error is None, ack
        return statistics.median(times)


@dataclass
class Totals:
    """The sums of all rounds of one user."""

    stored: int = 0
    seconds: float = 0
    server: float = 0
    client: float = 0
    alone: list[float] = field(default_factory=list[float])

    async def add(self, servers: Servers, publisher: Publisher, sizes: Sizes) -> None:
        gc.collect()
        before, server, client = publisher.stored, servers.cpu(), time.process_time()
        self.seconds += await publisher.fill(sizes.seconds / _ROUNDS)
        self.stored += publisher.stored - before
        self.server += servers.cpu() - server
        self.client += time.process_time() - client
        self.alone.append(await publisher.time_alone(sizes.alone // _ROUNDS))

    def figures(self) -> dict[str, float]:
        return {
            "messages/s": round(self.stored / self.seconds),
            "server us": self.server / self.stored * 1e6,
            "client us": self.client / self.stored * 1e6,
            "alone ms": min(self.alone),
        }


async def compare(servers: Servers, replicas: int, sizes: Sizes) -> dict[str, dict[str, float]]:
    """The figures of both users on the same servers, in turn."""
    body = codec.encode(event(object=b'{"data":"' + b"x" * sizes.object_bytes + b'"}'))
    numbers = count(1)
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(connected(servers.access("hub"), name="hub"))
        await ensure_stream(hub, StreamLimits(replicas=replicas))
        publishers: dict[str, Publisher] = {}
        for user in ("inside", "guest"):
            bus = await stack.enter_async_context(connected(servers.access(user), name=user))
            window = await stack.enter_async_context(open_window(bus))
            publishers[user] = Publisher(window, body, numbers)
            await publishers[user].time_alone(1)
        totals = {user: Totals() for user in publishers}
        for _ in range(_ROUNDS):
            for user, publisher in publishers.items():
                await totals[user].add(servers, publisher, sizes)
    return {user: total.figures() for user, total in totals.items()}


async def measure(sizes: Sizes) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for replicas in (1, 3):
        for is_tls in (False, True):
            name = f"R{replicas}, {'TLS' if is_tls else 'plain'}"
            with scratch_folder("bench") as folder:
                async with running(folder, replicas, is_tls=is_tls) as servers:
                    compared = await compare(servers, replicas, sizes)
            lines.append({"name": f"{name}, one account", **compared["inside"]})
            lines.append({"name": f"{name}, through an import", **compared["guest"]})
    return lines


def show(lines: list[dict[str, Any]]) -> None:
    for name, *figures in (line.items() for line in lines):
        values = "".join(f"{unit} {figure:8,.2f}   " for unit, figure in figures)
        print(f"{name[1]:30}{values.rstrip()}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
