"""A store that answers but refuses: said at start with what to do, and waited for later (P9, P16).

The states are those of `docs/store.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fleetbus.controller.controller import Controller
from fleetbus.errors import StoreError
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from fleetbus.store.connection import connect
from fleetbus.store.refusals import hint_for
from fleetbus_devfleet.processes.servers import NatsServer
from fleetbus_reconciler.timing import ReconcilerTiming
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import fleet_rig
from support.stores.documented_users import PASSWORD, documented_user
from support.stores.refusing_store import RefusingStore, State, refusing_store

PODS = "v1/pods"
SOON = timedelta(seconds=40)
Refusing = RefusingStore
REFUSALS: dict[str, tuple[State, str, str]] = {
    "replica": (Refusing.replica, "is a replica of 127.0.0.1:1, .* lead to the primary", "replica"),
    "disk": (Refusing.without_disk, "refuses: MISCONF .*; make room on its disk", "make room"),
    "blocked": (Refusing.blocked, "refuses: BUSY .*; a script of another", "SCRIPT KILL"),
    "loading": (Refusing.loading, "refuses: .*loading.*; it reads its data", "reads its data"),
    "rights": (Refusing.without_rights, "", "give its user the rights"),
    "password": (Refusing.with_another_password, "check user and password", "user and password"),
    "connections": (Refusing.without_connections, "; raise its `maxclients`", "maxclients"),
}
"""State → message at start, hint in the log. A user without rights may want to read only."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[RefusingStore]:
    async with refusing_store(tmp_path / "store") as refusing:
        yield refusing


@pytest.mark.slow
async def test_at_start_each_refusal_says_what_to_do(store: RefusingStore):
    for state, message, _ in REFUSALS.values():
        if message:
            async with state(store):
                with pytest.raises(StoreError, match=message):
                    await connect(store.url)
        await (await connect(store.url)).aclose()


@pytest.mark.slow
async def test_at_start_a_slow_store_is_waited_for(store: RefusingStore):
    async with store.slow():
        await (await connect(store.url)).aclose()


async def test_a_database_that_does_not_exist_is_refused(store: RefusingStore):
    with pytest.raises(StoreError, match="DB index is out of range; the number at the end of the"):
        await connect(f"{store.url}/99")


async def test_another_server_at_the_address_is_no_store(nats_process: NatsServer):
    expected = "refuses: .*; what listens there is no Redis or Valkey: check host and port"
    with pytest.raises(StoreError, match=expected):
        await connect(nats_process.url.replace("nats://", "redis://"))


@asynccontextmanager
async def serving(answer: bytes) -> AsyncGenerator[str]:
    """A server that answers whatever comes with this, or with nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        if not answer:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://u:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_an_http_server_at_the_address_is_no_store_and_no_password_is_shown():
    async with serving(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        with pytest.raises(StoreError, match="no Redis or Valkey") as caught:
            await connect(url)
    assert "secret" not in str(caught.value)


async def test_a_server_that_answers_nothing_is_given_up():
    async with serving(b"") as url:
        with pytest.raises(StoreError, match=r"does not answer within 0\.2 seconds"):
            await connect(url, check_within=timedelta(seconds=0.2))


class Seen:
    """The label of each pod as a controller read it last."""

    def __init__(self) -> None:
        self.controller = Controller("pods")
        self.controller.watch(PODS)
        self.controller.reconcile(self._look)
        self.labels: dict[str, str] = {}

    async def _look(self, request: Request, fleet: Fleet) -> None:
        obj = await fleet.cluster(request.cluster).get(PODS, request.namespace, request.name)
        if obj is not None:
            self.labels[request.name] = obj["metadata"]["labels"]["v"]


@pytest.mark.slow
async def test_p9_while_a_store_refuses_events_wait_and_go_on_when_it_is_mended(
    store: RefusingStore, nats_url: str, tmp_path: Path
):
    log = Seen()
    async with fleet_rig("a", folder=tmp_path, nats_url=nats_url, valkey_url=store.url) as rig:
        rig.reconciler_timing = ReconcilerTiming(checks=timedelta(milliseconds=200))
        cluster = rig.clusters["a"]
        cluster.create(PODS, pod("web", labels={"v": "0"}), "default")
        rig.start_reconciler(log.controller)
        rig.start_watcher("a")
        await eventually(lambda: log.labels == {"web": "0"}, within=SOON)
        for name, (state, _, hint) in REFUSALS.items():
            with capture_logs() as logs:
                async with state(store):
                    cluster.patch(PODS, "default", "web", {"metadata": {"labels": {"v": name}}})
                    await eventually(
                        lambda: [
                            line
                            for line in logs
                            if line["event"] == "store_refuses" and hint in line["hint"]  # noqa: B023
                        ],
                        within=SOON,
                    )
                    assert log.labels["web"] != name
            await eventually(lambda: log.labels["web"] == name, within=SOON)  # noqa: B023
        async with store.slow():
            cluster.patch(PODS, "default", "web", {"metadata": {"labels": {"v": "slow"}}})
            await eventually(lambda: log.labels["web"] == "slow", within=SOON)


def test_other_errors_have_no_hint():
    assert not hint_for(ValueError("BUSYGROUP Consumer Group name already exists"))
    assert not hint_for(ValueError("x"))


async def test_s8_the_rights_in_the_documentation_suffice(
    store: RefusingStore, nats_url: str, tmp_path: Path
):
    user = "reconciler-shop"  # it may also do what the projector does
    await store.do(*documented_user(user, controller="pods"))
    await store.do("ACL", "SETUSER", "default", "-@write")
    url = store.url.replace("redis://", f"redis://{user}:{PASSWORD}@")
    log = Seen()
    with capture_logs() as logs:
        async with fleet_rig("a", folder=tmp_path, nats_url=nats_url, valkey_url=url) as rig:
            cluster = rig.clusters["a"]
            cluster.create(PODS, pod("web", labels={"v": "0"}), "default")
            rig.start_reconciler(log.controller)
            rig.start_watcher("a")
            await eventually(lambda: log.labels == {"web": "0"}, within=SOON)
            await rig.quiet("pods")
    assert [line for line in logs if "permission" in str(line)] == []
    assert [line for line in logs if line["event"] == "store_refuses"] == []
