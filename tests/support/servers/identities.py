"""Certificates, nkeys, JWTs, and a NATS server whose logins a test rotates."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import nkeys
import trustme

from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import NatsServer, find_nats_server
from fleetbus_emulator.ports import HeldPort

_START = timedelta(seconds=10)


class Authority:
    """A CA, and the certificates that it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.crt"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str) -> tuple[Path, Path]:
        """The paths of a certificate for 127.0.0.1 and of its key."""
        issued = self._ca.issue_cert("127.0.0.1", common_name=name)
        cert, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return cert, key


@dataclass
class KeyPair:
    """An nkey; `kind` is nkeys' byte for operators, accounts or users."""

    kind: int
    seed: str = ""
    public: str = ""
    pair: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        encode = cast("Any", nkeys).encode_seed
        self.seed = bytes(encode(os.urandom(32), self.kind)).decode().strip()
        self.pair = cast("Any", nkeys).from_seed(bytearray(self.seed.encode()))
        self.public = self.pair.public_key.decode()

    def sign_claims(self, subject: str, name: str, claims: Mapping[str, Any], **more: Any) -> str:
        """A JWT about somebody, as `nsc` makes them."""
        body = {"iat": int(time.time()) - 5, "iss": self.public, "sub": subject, "name": name}
        body |= {"nats": {**claims, "version": 2}, **more}
        body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode()
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = ".".join(_base64(json.dumps(section).encode()) for section in (head, body))
        return f"{text}.{_base64(self.pair.sign(text.encode()))}"


def user_key() -> KeyPair:
    return KeyPair(cast("int", cast("Any", nkeys).PREFIX_BYTE_USER))


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Operator:
    """An operator with one account, whose users have .creds files."""

    def __init__(self) -> None:
        of = cast("Any", nkeys)
        self._operator = KeyPair(of.PREFIX_BYTE_OPERATOR)
        self._account = KeyPair(of.PREFIX_BYTE_ACCOUNT)
        self._system = KeyPair(of.PREFIX_BYTE_ACCOUNT)
        self._revoked: dict[str, int] = {}

    def revoke(self, user: KeyPair) -> None:
        """From the next configuration on that user is refused."""
        self._revoked[user.public] = int(time.time())

    def config(self) -> str:
        operator = self._operator.sign_claims(self._operator.public, "o", {"type": "operator"})
        unlimited = ("subs", "data", "payload", "conn", "leaf", "imports", "exports")
        limits: dict[str, Any] = dict.fromkeys(unlimited, -1) | {"wildcards": True}
        stored = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
        claims = {"type": "account", "limits": limits | stored, "revocations": self._revoked}
        account = self._operator.sign_claims(self._account.public, "a", claims)
        system = self._operator.sign_claims(
            self._system.public, "sys", {"type": "account", "limits": limits}
        )
        return (
            f"operator: {operator}\nresolver: MEMORY\nsystem_account: {self._system.public}\n"
            f"resolver_preload: {{\n{self._account.public}: {account}\n"
            f"{self._system.public}: {system}\n}}\n"
        )

    def creds(self, user: KeyPair, **more: Any) -> str:
        """A .creds file; `exp` is when it expires."""
        claims = {"type": "user", "subs": -1, "data": -1, "payload": -1}
        jwt = self._account.sign_claims(user.public, "u", claims, **more)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


@dataclass
class SecuredNats:
    """A NATS server whose configuration changes while it runs."""

    server: NatsServer
    config: Path
    fixed: str

    @property
    def address(self) -> str:
        return self.server.url

    def configure(self, logins: str) -> None:
        """Write the configuration for the next start or reload."""
        self.config.write_text(self.fixed + logins)

    def reload(self) -> None:
        """Do what `nats-server --signal reload` does."""
        self.server.process.send_signal(signal.SIGHUP)

    async def crash(self) -> None:
        """Kill it, and start it with the configuration as it is now."""
        self.server.kill()
        await self.server.child.stop()
        self.server.child.respawn()
        await self.server.child.wait_until(self.server.is_ready, within=_START)


@asynccontextmanager
async def secured_nats(folder: Path, logins: str) -> AsyncGenerator[SecuredNats]:
    """Run a NATS server with JetStream and a configuration of its logins."""
    folder.mkdir(parents=True, exist_ok=True)
    port = HeldPort("127.0.0.1", 0)
    config = folder / "nats.conf"
    fixed = (
        f'listen: "127.0.0.1:{port.number}"\nports_file_dir: "{folder}"\n'
        f'jetstream {{ store_dir: "{folder}/store" }}\n'
    )
    config.write_text(fixed + logins)
    child = Child("nats", [find_nats_server(), "-c", config], log=folder / "log")
    url = f"nats://127.0.0.1:{port.number}"
    try:
        server = NatsServer(url=url, child=child, store_dir=folder)
        await child.wait_until(server.is_ready, within=_START)
        yield SecuredNats(server, config, fixed)
    finally:
        await child.stop()
        port.release()
