"""The token of the command line: where it is from, whom it is sent to, what a refusal says."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import trustme
import yaml

from fleetbus.errors import ConfigError
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.api_token import find_token
from fleetbus_cli.app import app
from fleetbus_cli.target import ApiFlags, Target
from support.rigs.secured_api import grant, rule, secured_api

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

    from redis.asyncio import Redis

    from support.rigs.secured_api import SecuredApi

HTTPS, HTTP = "https://fleet.example:8443", "http://fleet.example:8080"
VARIABLES = ("TOKEN", "API_TOKEN_FILE", "API_CA_FILE", "API_URL", "HUB_KUBECONFIG", "HUB_CONTEXT")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"FLEETBUS_{name}", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("FLEETBUS_CONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


def kubeconfig(folder: Path, **user: Any) -> Path:
    document = {
        "current-context": "hub",
        "clusters": [],
        "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "ann"}}],
        "users": [{"name": "ann", "user": user}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_token_goes_over_https_or_to_loopback_only(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    ways: list[dict[str, Any]] = [{"token": "secret-1"}, {"token_file": str(file)}]
    for way in ways:
        for url in (HTTPS, "http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
            assert find_token(Target(api_url=url, **way)).token == "secret-1"
        for url in (HTTP, "http://127.0.0.1@fleet.example", "http://10.0.0.1", "http://127.evil"):
            with pytest.raises(ConfigError, match="clear text") as refused:
                find_token(Target(api_url=url, **way))
            assert "secret-1" not in str(refused.value)


def test_a_kubeconfig_s_token_goes_over_https_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "token").write_text("from-file")
    cases = [({"token": "a"}, "a"), ({"tokenFile": str(tmp_path / "token")}, "from-file")]
    for user, token in [*cases, ({"exec": {"command": "false"}}, ""), ({}, "")]:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, **user)))
        assert find_token(Target(api_url=HTTPS)).token == token
        for url in (HTTP, "http://127.0.0.1:1"):
            assert find_token(Target(api_url=url)).token == ""
        assert find_token(Target(api_url=HTTPS, token="b")).token == "b"


def test_what_is_no_token_is_an_error_that_does_not_show_it(tmp_path: Path):
    file = tmp_path / "token"
    for content in (b"", b"se cret", b"se\ncret", "secr\u00e9t".encode(), b"secret\x00"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="not a bearer token") as refused:
            find_token(Target(api_url=HTTPS, token_file=str(file)))
        assert "cret" not in str(refused.value)
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        find_token(Target(api_url=HTTPS, token_file=str(file)))


def find_source(target: Target) -> tuple[str, str]:
    return target.token, target.token_file


def test_flags_win_and_two_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_API_TOKEN_FILE", "/env")
    monkeypatch.setenv("FLEETBUS_API_CA_FILE", "/ca")
    resolved = ApiFlags(url=HTTPS).resolve()
    assert (resolved.token_file, resolved.ca) == ("/env", "/ca")
    (tmp_path / "config.yaml").write_text("token: from-the-config-file")
    monkeypatch.setenv("FLEETBUS_CONFIG", str(tmp_path / "config.yaml"))
    assert find_source(ApiFlags(url=HTTPS).resolve()) == ("", "/env")
    assert ApiFlags(url=HTTPS, token_file=tmp_path).resolve().token_file == str(tmp_path)
    given = ApiFlags(url=HTTPS, token="a").resolve()
    assert (given.token, given.token_file) == ("a", "")
    assert "'a'" not in repr(given)
    with pytest.raises(ConfigError, match="together"):
        ApiFlags(url=HTTPS, token="a", token_file=tmp_path).resolve()


class _Redirecting(BaseHTTPRequestHandler):
    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        self.send_response(302)
        self.send_header("Location", f"http://localhost:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_args: Any, **_named: Any) -> None:
        pass


@pytest.fixture
def redirecting() -> Generator[str]:
    _Redirecting.seen = []
    with HTTPServer(("127.0.0.1", 0), _Redirecting) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_redirect_is_not_followed(redirecting: str):
    client = ApiClient(Target(api_url=redirecting, token="a"))
    with pytest.raises(ApiFailed, match="302"):
        client.get("/fleet/v1/clusters")
    assert _Redirecting.seen == ["Bearer a"]


@pytest.fixture
async def api(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    async with secured_api(redis, valkey_url, tmp_path) as server:
        yield server


async def test_the_command_shows_what_its_user_may_read_and_says_what_to_do(
    api: SecuredApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    cert, key, authority = (tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt"))
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    ca.cert_pem.write_to_path(authority)
    right = rule("get list", "fleetbus.dev", "clusters/pods", names=("eu1",))
    grant(api.hub, "ann", right, namespace="prod")
    await api.start(tls_cert_file=cert, tls_key_file=key, deny_cache=timedelta(0))
    token = tmp_path / "token"
    connection = ["--api-url", api.url, "--ca-file", str(authority), "--token-file", str(token)]

    async def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = int(await asyncio.to_thread(app, [*arguments, *connection], standalone_mode=False))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    token.write_text(api.user("ann"))
    status, out, err = await run("get", "pods", "-n", "prod", "--cluster", "eu1", "-o", "name")
    # The API, in this process, logs to the same output, before and after: its lines have spaces.
    names = [line for line in out.splitlines() if " " not in line]
    assert (status, names) == (0, ["eu1/pods/prod/prod-1"]), err
    status, _, err = await run("get", "pods")
    assert (status, "name it" in err) == (1, True), err
    status, out, err = await run("get", "pods", "-n", "prod", "--cluster", "us1")
    assert (status, "may not list" in err) == (1, True), err
    token.write_text(api.expired("bob"))
    status, _, err = await run("clusters")
    assert (status, "kubectl create token" in err, "token-of-bob" in err) == (1, True, False), err
    connection = connection[:-2]
    status, _, err = await run("clusters")
    assert (status, "no token was sent; give --token-file" in err) == (1, True), err
    connection = ["--api-url", api.url]
    status, _, err = await run("clusters")
    assert (status, "certificate" in err) == (1, True), err
