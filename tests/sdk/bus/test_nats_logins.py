"""Logins of NATS from files: rotated under load, refused, mended (rules B13, S2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_stream, stream_info
from fleetbus.bus.window import Window, open_window
from fleetbus.errors import BusError, ConfigError
from fleetbus.process.access.nats import NatsAccess, nats_access
from fleetbus.process.health import Health
from support.eventually import eventually
from support.rows import each_row
from support.servers.identities import Authority, Operator, SecuredNats, secured_nats, user_key

ENOUGH = 30
CANARY = "CANARY-7f3a"


@dataclass
class Identity:
    """The server's configuration, and the files that fit it."""

    logins: str
    files: dict[str, str]
    text: dict[str, str] = field(default_factory=dict[str, str])
    """Settings that are no file."""


@dataclass
class Login:
    """The files of one client, as a mounted Secret has them."""

    folder: Path
    address: str
    text: dict[str, str]

    def write(self, files: dict[str, str]) -> None:
        self.folder.mkdir(exist_ok=True)
        for name, content in files.items():
            partial = self.folder / f"{name}.part"
            partial.write_text(content)
            partial.replace(self.folder / name)  # another inode, as the kubelet's

    @property
    def access(self) -> NatsAccess:
        paths = {path.name: path for path in self.folder.iterdir()}
        return nats_access({"url": self.address, **self.text, **paths})


def password(_folder: Path) -> tuple[Identity, Identity]:
    return _password("one"), _password("two")


def _password(word: str) -> Identity:
    logins = f"authorization {{ users: [ {{ user: w, password: {CANARY}-{word} }} ] }}\n"
    return Identity(logins, {"password_file": f"{CANARY}-{word}\n"}, {"username": "w"})


def nkey(_folder: Path) -> tuple[Identity, Identity]:
    keys = user_key(), user_key()
    logins = [f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}\n" for key in keys]
    files = [{"nkey_file": key.seed} for key in keys]
    first, second = map(Identity, logins, files)
    return first, second


def creds(_folder: Path) -> tuple[Identity, Identity]:
    operator, old, new = Operator(), user_key(), user_key()
    first = Identity(operator.config(), {"creds_file": operator.creds(old)})
    operator.revoke(old)
    return first, Identity(operator.config(), {"creds_file": operator.creds(new)})


def certificates(folder: Path) -> tuple[Identity, Identity]:
    """Another CA for both sides, another certificate of the server and of the client."""
    first, second = (_certificates(Authority(folder / name)) for name in ("first", "second"))
    return first, second


def _certificates(authority: Authority) -> Identity:
    cert, key = authority.issue("server")
    logins = f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{authority.ca}"'
    logins += "\nverify: true }\n"
    mine, my_key = authority.issue("client")
    files = {"ca_file": authority.ca, "cert_file": mine, "key_file": my_key}
    return Identity(logins, {name: path.read_text() for name, path in files.items()})


KINDS: dict[str, Callable[[Path], tuple[Identity, Identity]]] = {
    "password": password,
    "nkey": nkey,
    "creds": creds,
    "certificates": certificates,
}


class Load:
    """Publishes through a window without a pause, and counts what was acknowledged."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.sent = 0
        self.stored = 0

    async def run(self) -> None:
        while True:
            self.sent += 1
            headers = {"Nats-Msg-Id": str(self.sent)}
            ack = await self._window.send(f"fleetbus.status.eu1.r{self.sent}", b"x", headers)
            assert ack.error is None, ack
            self.stored += 1
            await asyncio.sleep(0.001)  # the pace of the load


@pytest.mark.parametrize("kind", KINDS)
async def test_s2_a_rotation_under_load_loses_no_event_and_needs_no_restart(
    tmp_path: Path, kind: str
):
    old, new = KINDS[kind](tmp_path)
    async with secured_nats(tmp_path / "nats", old.logins) as nats, asyncio.TaskGroup() as group:
        login = Login(tmp_path / "mounted", nats.address, old.text)
        login.write(old.files)
        health = Health()
        async with (
            connected(login.access, name="watcher.eu1", health=health) as bus,
            open_window(bus) as window,
        ):
            await ensure_stream(bus)
            load = Load(window)
            task = group.create_task(load.run())
            await eventually(lambda: load.stored > ENOUGH)
            nats.configure(new.logins)
            await _enforce(nats, kind)
            await eventually(lambda: "check FLEETBUS_NATS_" in bus.trouble())
            assert not health.is_ready
            login.write(new.files)  # the kubelet is late
            await eventually(lambda: bus.is_connected)
            assert health.is_ready
            before = load.stored
            await eventually(lambda: load.stored > before + ENOUGH)
            task.cancel()
            await window.drain(timedelta(seconds=10))
            info = await stream_info(bus)
            assert info is not None
            assert load.stored <= info["state"]["messages"] <= load.sent
            assert not bus.has_failed


async def _enforce(nats: SecuredNats, kind: str) -> None:
    """A reload ends the connections whose login has changed, unless it is only their TLS."""
    if kind == "certificates":
        await nats.crash()
    else:
        nats.reload()


def _unready(health: Health) -> str:
    """The body of /readyz."""
    return str({name: check() for name, check in vars(health)["_ready"].items()})


SPOILED: list[tuple[str, str, dict[str, str | None], str]] = [
    ("password", "wrong", {"password_file": CANARY}, "FLEETBUS_NATS_PASSWORD_FILE ({})"),
    ("password", "empty", {"password_file": ""}, "PASSWORD_FILE ({}): the file is empty"),
    ("password", "missing", {"password_file": None}, "cannot be read: No such file"),
    ("nkey", "not a seed", {"nkey_file": CANARY}, "NKEY_FILE ({}): not the seed of an nkey"),
    ("creds", "half", {"creds_file": CANARY}, "CREDS_FILE ({}): not a .creds file"),
    ("certificates", "another CA", {"ca_file": "another"}, "check FLEETBUS_NATS_CA_FILE ({})"),
    ("certificates", "no PEM", {"ca_file": CANARY}, "CA_FILE ({}): no certificate in PEM"),
    ("certificates", "no key", {"key_file": CANARY}, "not a certificate with its unencrypted key"),
    ("certificates", "unknown", {"cert_file": "another", "key_file": "another"}, "CERT_FILE ({})"),
]


@pytest.mark.parametrize(
    ("kind", "spoiled", "message"),
    [
        pytest.param(kind, spoiled, message, id=f"{kind}-{how}")
        for kind, how, spoiled, message in SPOILED
    ],
)
async def test_b13_who_is_refused_says_which_file_is_not_ready_and_recovers(
    tmp_path: Path, kind: str, spoiled: dict[str, str | None], message: str
):
    good, _ = KINDS[kind](tmp_path)
    _, other = certificates(tmp_path / "others")
    first = next(iter(spoiled))
    async with secured_nats(tmp_path / "nats", good.logins) as nats:
        login = Login(tmp_path / "mounted", nats.address, good.text)
        login.write(good.files)
        for name, content in spoiled.items():
            login.write({name: other.files[name] if content == "another" else content or ""})
        with capture_logs() as logs:
            spoiled_access = login.access
            for name in [name for name, content in spoiled.items() if content is None]:
                (login.folder / name).unlink()
            health = Health()
            task = asyncio.create_task(_connect_once(spoiled_access, health))
            expected = message.format(login.folder / first)
            await eventually(lambda: expected in _unready(health))
            assert CANARY not in _unready(health) + str(logs)
            with pytest.raises(BusError) as caught:  # a command waits for nobody
                async with connected(spoiled_access, name="cli"):
                    raise AssertionError
            assert expected in str(caught.value)
            assert CANARY not in str(caught.value)
            login.write(good.files)
            await asyncio.wait_for(task, 10)
        assert "nats_error" in {line["event"] for line in logs}
        assert CANARY not in str(logs)


async def _connect_once(access: NatsAccess, health: Health) -> None:
    async with connected(access, name="watcher.eu1", health=health):
        assert health.is_ready


@pytest.mark.slow
async def test_b13_an_expired_jwt_is_reported_with_its_time(tmp_path: Path):
    operator, user = Operator(), user_key()
    async with secured_nats(tmp_path / "nats", operator.config()) as nats:
        login = Login(tmp_path / "mounted", nats.address, {})
        login.write({"creds_file": operator.creds(user, exp=int(time.time()) + 2)})
        health = Health()
        async with connected(login.access, name="watcher.eu1", health=health) as bus:
            await eventually(lambda: "it expired at" in bus.trouble())
            assert not health.is_ready
            login.write({"creds_file": operator.creds(user)})
            await eventually(lambda: bus.is_connected)


async def test_s2_a_password_is_never_sent_without_the_tls_that_is_demanded(tmp_path: Path):
    logins = _password("one")
    async with secured_nats(tmp_path / "nats", logins.logins) as nats:
        login = Login(tmp_path / "mounted", nats.address.replace("nats:", "tls:"), logins.text)
        login.write(logins.files)
        with pytest.raises(BusError, match="offers no TLS"):
            async with connected(login.access, name="t"):
                raise AssertionError


async def test_s2_tls_is_used_where_the_server_leaves_the_choice(tmp_path: Path):
    good, _ = certificates(tmp_path)
    logins = good.logins.replace("tls {", "allow_non_tls: true\ntls {")
    async with secured_nats(tmp_path / "nats", logins) as nats:
        login = Login(tmp_path / "mounted", nats.address, good.text)
        login.write(good.files)
        async with connected(login.access, name="t") as bus:
            transport: Any = vars(bus.nc)["_transport"]
            assert vars(transport)["_io_writer"].get_extra_info("ssl_object") is not None


@each_row(
    ("values", "message"),
    [
        ({"creds_file": "a", "nkey_file": "b"}, "NATS_CREDS_FILE and FLEETBUS_NATS_NKEY_FILE"),
        ({"username": "a"}, "FLEETBUS_NATS_USERNAME needs FLEETBUS_NATS_PASSWORD_FILE"),
        ({"password_file": "a"}, "PASSWORD_FILE needs FLEETBUS_NATS_USERNAME"),
        ({"cert_file": "a"}, "FLEETBUS_NATS_CERT_FILE needs FLEETBUS_NATS_KEY_FILE"),
        ({"inbox_prefix": "_INBOX.>"}, "FLEETBUS_NATS_INBOX_PREFIX: '_INBOX.>' is no subject"),
        (
            {"url": f"nats://u:{CANARY}@h", "creds_file": "a"},
            "FLEETBUS_NATS_URL and FLEETBUS_NATS_CREDS_FILE both",
        ),
    ],
)
def test_contradicting_settings_are_named(values: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        nats_access({"url": "nats://h", **values})
    assert CANARY not in str(caught.value)


def test_s2_no_repr_shows_the_address_with_its_password():
    assert CANARY not in repr(nats_access({"url": f"nats://u:{CANARY}@h"}))
