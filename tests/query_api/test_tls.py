"""TLS of the query API: its files, and their rotation without a restart."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
import trustme

from fleetbus.errors import ConfigError
from fleetbus_query_api.tls import ServerTls
from support.rigs.query_api import served
from support.servers.health_probes import read_probe

if TYPE_CHECKING:
    from pathlib import Path


class MountedSecret:
    """The files of a Secret as kubelet mounts them: links into a folder that is swapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.folder.mkdir()
        for name in ("tls.crt", "tls.key"):
            (self.folder / name).symlink_to(f"..data/{name}")

    @property
    def folder(self) -> Path:
        return self._folder / "secret"

    @property
    def files(self) -> tuple[Path, Path]:
        return self.folder / "tls.crt", self.folder / "tls.key"

    def write(self, version: str, certificate: bytes, key: bytes) -> None:
        """Swap to another version of the Secret."""
        folder = self.folder / version
        folder.mkdir()
        (folder / "tls.crt").write_bytes(certificate)
        (folder / "tls.key").write_bytes(key)
        (self.folder / "new").symlink_to(version)
        os.replace(self.folder / "new", self.folder / "..data")  # noqa: PTH105 -- of a link


class Authority:
    """Issues certificates, and makes clients that trust nobody else."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    def issue(self) -> tuple[bytes, bytes]:
        issued = self._ca.issue_cert("127.0.0.1", "localhost")
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        return chain, issued.private_key_pem.bytes()

    async def reaches(self, url: str) -> bool:
        """Whether a new connection shows a certificate of this authority."""
        trusting = ssl.create_default_context(cadata=self._ca.cert_pem.bytes().decode())
        try:
            async with httpx.AsyncClient(verify=trusting) as client:
                return (await client.get(f"{url}/openapi.json")).status_code == 200
        except httpx.ConnectError:
            return False


async def test_a_rotated_certificate_is_shown_without_a_restart(valkey_url: str, tmp_path: Path):
    first, second, secret = Authority(), Authority(), MountedSecret(tmp_path)
    secret.write("1", *first.issue())
    cert, key = secret.files
    async with served(valkey_url, tmp_path, tls_cert_file=cert, tls_key_file=key) as url:
        assert url.startswith("https://")
        assert await first.reaches(url)
        assert not await second.reaches(url)
        # A pair that does not belong together, or is none, is not used; the last good one is.
        secret.write("2", second.issue()[0], second.issue()[1])
        assert await first.reaches(url)
        secret.write("3", b"", b"")
        assert await first.reaches(url)
        secret.write("4", *second.issue())
        assert await second.reaches(url)
        assert not await first.reaches(url)
        # IP addresses send no server name, a name does.
        assert await second.reaches(url.replace("127.0.0.1", "localhost"))


async def test_a_certificate_that_comes_late_is_waited_for(valkey_url: str, tmp_path: Path):
    authority, secret, probes = Authority(), MountedSecret(tmp_path), tmp_path / "health.port"
    cert, key = secret.files

    async def mend() -> None:
        status, text = await read_probe(probes, "/readyz")
        assert (status, f"{cert}, {key}: No such file" in text) == (503, True), text
        secret.write("1", *authority.issue())

    mending = asyncio.create_task(mend())
    shared = {"health_port_file": probes}
    async with served(
        valkey_url, tmp_path, shared=shared, tls_cert_file=cert, tls_key_file=key
    ) as url:
        await mending
        assert await authority.reaches(url)


def test_bad_files_are_one_message_without_their_content(tmp_path: Path):
    certificate, key = Authority().issue()
    cert_file, key_file = tmp_path / "tls.crt", tmp_path / "tls.key"
    with pytest.raises(ConfigError, match=r"TLS_CERT_FILE.*No such file"):
        ServerTls(cert_file, key_file)
    cert_file.write_bytes(certificate)
    for content in (b"", b"secret", Authority().issue()[1]):
        key_file.write_bytes(content)
        with pytest.raises(ConfigError, match="no PEM certificate with its private key") as refused:
            ServerTls(cert_file, key_file)
        assert "secret" not in str(refused.value)
    key_file.write_bytes(key)
    assert ServerTls(cert_file, key_file).context.minimum_version == ssl.TLSVersion.TLSv1_2
