"""Messages of the command line about certificates that it does not accept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import trustme

from support.processes.in_process_commands import fleetbus
from support.rigs.query_api import served

if TYPE_CHECKING:
    from pathlib import Path

OURS, OTHERS = trustme.CA(), trustme.CA()
PAST = datetime.now(UTC) - timedelta(days=1)
NAMES_A_CA = "set --ca-file or FLEETBUS_API_CA_FILE to the CA that signed it"


@pytest.mark.parametrize(
    ("ca", "issued_for", "ends", "expected"),
    [
        (OTHERS, "127.0.0.1", None, NAMES_A_CA),
        (None, "127.0.0.1", None, NAMES_A_CA),
        (OURS, "127.0.0.1", PAST, "certificate has expired"),
        (OURS, "fleet.example", None, "not valid for '127.0.0.1'"),
    ],
)
async def test_a_certificate_that_is_not_accepted_is_named_with_the_reason(
    valkey_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ca: trustme.CA | None,
    issued_for: str,
    ends: datetime | None,
    expected: str,
):
    issued = OURS.issue_cert(issued_for, not_after=ends)
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    monkeypatch.setenv("HOME", str(tmp_path))
    if ca is not None:
        ca.cert_pem.write_to_path(tmp_path / "ca.crt")
        monkeypatch.setenv("FLEETBUS_API_CA_FILE", str(tmp_path / "ca.crt"))
    async with served(valkey_url, tmp_path, tls_cert_file=cert, tls_key_file=key) as url:
        monkeypatch.setenv("FLEETBUS_API_URL", url)
        status = await asyncio.to_thread(fleetbus, "get", "pods")

    error = capsys.readouterr().err
    assert status == 1
    assert "is not accepted" in error
    assert expected in error
    assert (NAMES_A_CA in error) is (expected == NAMES_A_CA)
    assert "_ssl.c" not in error
