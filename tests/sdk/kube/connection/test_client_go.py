"""Kubeconfigs lead to the same requests as with client-go, or to a problem that names the field."""

from __future__ import annotations

import hashlib
import json
import ssl
from pathlib import Path
from typing import Any, Final

import pytest

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import connect, read_kube_config
from fleetbus.kube.connection.tls import use_certificate
from support.client_go.goldens import KUBECONFIGS, ask_client_go
from support.client_go.kubeconfigs import FOLDER, Case, cases
from support.processes.go_informer import find_go_program

_CASES: Final = {case.name: case for case in cases()}
_REFUSED: Final = {
    # An address is https, and says so (rule S7).
    "cluster server without scheme": "server",
    "cluster server host alone": "server",
    "cluster server ftp": "server",
    # No library of ours speaks SOCKS.
    "cluster proxy socks5": "'proxy-url'",
    "environment 126 https://api.example.org:6443 "
    "{'HTTPS_PROXY': 'socks5://proxy.example.org'}": "HTTPS_PROXY",
    # A typing error, and not meant to be anonymous.
    "document context with unknown user": "named 'x'",
    "document users null": "named 'u'",
}
"""Cases that client-go connects with, and the field that our refusal names."""
_NO_AUTHORITIES: Final = Path(__file__).parent / "no-such.pem"
_COMPARED: Final = ("url", "proxy", "serverName", "insecure", "ca", "certificate", "compressed")


async def _ours(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Our answer, in the form of client-go's."""
    certificates: list[bytes] = []
    path = case.write(folder)
    with monkeypatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(_NO_AUTHORITIES))  # those of the system are slow to load
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        for name, value in case.env.items():
            patch.setenv(name, value)

        def note(context: ssl.SSLContext, pem: bytes, key: bytes) -> None:
            certificates.append(pem)
            use_certificate(context, pem, key)

        patch.setattr("fleetbus.kube.connection.parameters.use_certificate", note)
        try:
            connection = await connect(read_kube_config(path))
        except ConfigError as e:
            return {"error": str(e)}
    context = connection.ssl
    authorities = context.get_ca_certs() if context else []
    headers: dict[str, list[str]] = {}
    for name, value in connection.headers.items():
        headers.setdefault(name.lower(), []).append(value)
    compressed = headers.pop("accept-encoding", None) is None
    exec_file = folder / "seen.json"
    return {
        "url": f"{connection.host}/version",
        "proxy": connection.proxy or "",
        "serverName": connection.server_hostname or "",
        "insecure": context is not None and context.verify_mode == ssl.CERT_NONE,
        "ca": any("client" in str(each.get("subject")) for each in authorities),
        "certificate": _digest(certificates[0].decode()) if certificates else "",
        "compressed": compressed,
        "headers": headers,
        "execInfo": json.loads(exec_file.read_text().replace(str(folder), FOLDER))
        if exec_file.exists()
        else None,
    }


def _digest(pem: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()[:16]


def _as_ours(answer: dict[str, Any]) -> dict[str, Any]:
    """Client-go's answer, without the differences that are none."""
    if "error" in answer:
        return answer
    scheme, _, address = answer["url"].partition("://")
    empty = {"insecure": False, "ca": False}
    return {
        **{name: answer.get(name, empty.get(name, "")) for name in _COMPARED},
        # The login has become a header.
        "url": f"{scheme}://{address.rpartition('@')[2]}",
        "headers": {name.lower(): values for name, values in answer.get("headers", {}).items()},
        "execInfo": answer.get("execInfo"),
    }


async def test_each_kubeconfig_is_understood_like_client_go_or_refused_with_its_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected_answers = json.loads(KUBECONFIGS.read_text())
    assert expected_answers.keys() == _CASES.keys(), "run tests/run.py support.client_go.goldens"
    differences: dict[str, Any] = {}
    for i, (name, case) in enumerate(_CASES.items()):
        folder = tmp_path / str(i)
        folder.mkdir()
        actual, expected = await _ours(case, folder, monkeypatch), _as_ours(expected_answers[name])
        if name in _REFUSED:
            assert "error" not in expected, name
            if _REFUSED[name] not in actual.get("error", ""):
                differences[name] = actual
        elif ("error" in actual) != ("error" in expected) or (
            "error" not in actual and actual != expected
        ):
            differences[name] = (actual, expected)
    assert differences == {}


@pytest.mark.full
def test_the_answers_beside_the_tests_are_those_of_client_go():
    program = find_go_program("kubeconfig")
    if program is None:
        pytest.skip("needs Go 1.24 and the modules of tests/bench/peers/informer/go.mod")
    assert ask_client_go(program, list(_CASES.values())) == json.loads(KUBECONFIGS.read_text())
