"""Kubeconfigs: what is read from them, and that each mistake names the file and the place."""

from __future__ import annotations

import base64
import json
import pathlib
import sys
from dataclasses import replace
from typing import Any, cast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbus.errors import ConfigError
from fleetbus.kube.connection import config as config_module
from fleetbus.kube.connection.config import (
    KubeConfig,
    by_context,
    connect,
    contexts,
    current_context,
    read_kube_config,
    server_of,
    upload_refusal,
)
from fleetbus.kube.connection.kubeconfig_document import Document
from support.rows import each_row

SECRET = "s3cret-t0ken"
_KEYS = ["name", "context", "cluster", "user", "clusters", "contexts", "users", "current-context"]
TREES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5)
    ),
    max_leaves=12,
)


def _document(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [
            {"name": "ca", "cluster": {"server": "http://127.0.0.1:1/"}},
            {"name": "cb", "cluster": {"server": "http://127.0.0.1:2"}},
        ],
        "users": [
            {"name": "ua", "user": {"token": SECRET}},
            {"name": "ub", "user": {"username": "admin", "password": "pass"}},
        ],
        "contexts": [
            {"name": "a", "context": {"cluster": "ca", "user": "ua"}},
            {"name": "b", "context": {"cluster": "cb", "user": "ub"}},
        ],
    }
    return plain | changes


def _config(context: str = "", **changes: Any) -> KubeConfig:
    return KubeConfig(yaml.safe_dump(_document(**changes)), context, "my.kubeconfig")


def _user(**fields: Any) -> KubeConfig:
    return _config(users=[{"name": "ua", "user": fields}])


def _cluster(**fields: Any) -> KubeConfig:
    return _config(clusters=[{"name": "ca", "cluster": {"server": "https://h:1"} | fields}])


# --- reading ----------------------------------------------------------------------------------


def test_a_file_is_read_with_its_contexts(tmp_path: pathlib.Path):
    path = tmp_path / "k"
    path.write_text(yaml.safe_dump(_document()))
    config = read_kube_config(path)
    assert contexts(config) == ["a", "b"]
    assert (current_context(config), server_of(config)) == ("a", "http://127.0.0.1:1/")
    assert server_of(read_kube_config(path, "b")) == "http://127.0.0.1:2"


def test_the_address_that_is_shown_holds_no_credentials():
    server = "https://admin:S3CRET@h:6443/k8s/c-1?token=S3CRET"
    document = {
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
    }
    assert server_of(KubeConfig(yaml.safe_dump(document))) == "https://h:6443/k8s/c-1"


def test_json_is_read_like_yaml():
    assert contexts(KubeConfig(json.dumps(_document()))) == ["a", "b"]
    assert contexts(KubeConfig("{clusters: [], contexts: [{name: x}]}")) == ["x"]


def test_a_name_that_yaml_reads_as_a_number_is_a_name():
    text = (
        "clusters: [{name: 1, cluster: {server: 'http://h'}}]\n"
        "contexts: [{name: 2024, context: {cluster: 1}}]\ncurrent-context: 2024\n"
    )
    config = KubeConfig(text)
    assert contexts(config) == ["2024"]
    assert server_of(config) == "http://h"
    assert server_of(by_context(config)["2024"]) == "http://h"


@each_row(
    ("text", "reason"),
    [
        ("", "has no field 'clusters'"),
        ("[]", "has no field 'clusters'"),
        ("just text", "has no field 'clusters'"),
        ("a: b", "has no field 'clusters'"),
        ("clusters: [\n  - }", "invalid YAML at line 2"),
        ("clusters: 2024-13-45", "invalid YAML"),
        ("clusters: " + "[" * 1000, "invalid YAML"),
        ("clusters: \x00", "invalid YAML"),
        ("clusters: !!python/object:os.system {}", "invalid YAML"),
        ("clusters: []\ncontexts: text", "field 'contexts' is not a list"),
        ("clusters: []\ncontexts: [a]", "an entry of 'contexts' has no name"),
        ("clusters: []\ncontexts: [{context: {}}]", "an entry of 'contexts' has no name"),
    ],
)
def test_a_broken_document_is_one_line_that_names_the_file(
    tmp_path: pathlib.Path, text: str, reason: str
):
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_kube_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: pathlib.Path):
    (tmp_path / "binary").write_bytes(b"clusters: \xff\xfe")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "binary", "~no-such-user/k", "a\0b"):
        with pytest.raises(ConfigError) as caught:
            read_kube_config(path)
        assert str(path) in str(caught.value)


def test_an_unknown_context_is_named_beside_the_known_ones(tmp_path: pathlib.Path):
    path = tmp_path / "k"
    path.write_text(yaml.safe_dump(_document()))
    with pytest.raises(ConfigError, match="'c' is not one of a, b"):
        read_kube_config(path, "c")


@each_row(
    ("config", "reason"),
    [
        (_config(**{"current-context": ""}), "no current-context"),
        (_config("nowhere"), "contexts has no entry named 'nowhere'"),
        (_config(contexts=[{"name": "a"}]), "context 'a' is not a map"),
        (_config(contexts=[{"name": "a", "context": ["x"]}]), "context 'a' is not a map"),
        (_config(contexts=[{"name": "a", "context": {"cluster": "x"}}]), "named 'x'"),
        (_config(clusters=[{"name": "ca", "cluster": "text"}]), "cluster 'ca' is not a map"),
        (_config(clusters=None), "clusters has no entry named 'ca'"),
    ],
)
def test_what_a_context_names_and_the_document_lacks_is_reported(config: KubeConfig, reason: str):
    with pytest.raises(ConfigError) as caught:
        server_of(config)
    assert str(caught.value).startswith("my.kubeconfig: ")
    assert reason in str(caught.value)


@given(TREES)
@settings(deadline=None)
def test_no_document_makes_the_readers_fail_otherwise(tree: object):
    fields = cast("dict[str, Any]", tree) if isinstance(tree, dict) else {"contexts": tree}
    config = KubeConfig(json.dumps({"clusters": []} | fields))
    for read in (contexts, by_context, server_of):
        try:
            read(config)
        except ConfigError:
            continue
    assert isinstance(upload_refusal(config), str)


def test_no_message_and_no_repr_shows_a_secret():
    config = _user(token=SECRET)
    assert SECRET not in repr(config)
    broken = KubeConfig(f"clusters: []\nusers: [{{token: {SECRET}}} }}", "a", "f")
    with pytest.raises(ConfigError) as caught:
        contexts(broken)
    assert SECRET not in str(caught.value)


# --- one context ------------------------------------------------------------------------------


def test_a_part_holds_its_own_context_and_nothing_of_the_others():
    config = by_context(_config())["b"]
    assert (config.context, config.source) == ("b", "my.kubeconfig")
    assert server_of(config) == "http://127.0.0.1:2"
    assert SECRET not in config.document
    assert contexts(config) == ["b"]


def test_a_change_elsewhere_in_the_file_is_no_change_of_a_context():
    before = by_context(_config())
    other = _document(**{"current-context": "b"})
    other["clusters"][1]["cluster"]["server"] = "http://elsewhere"
    other["contexts"].append({"name": "c", "context": {"cluster": "ca"}})
    after = by_context(KubeConfig(yaml.safe_dump(other), "", "my.kubeconfig"))
    assert after["a"] == before["a"]
    assert after["b"] != before["b"]
    assert set(after) == {"a", "b", "c"}


def test_a_context_that_names_what_is_missing_has_a_part_that_says_so():
    parts = by_context(_config(contexts=[{"name": "x", "context": {"cluster": "no"}}]))
    with pytest.raises(ConfigError, match="named 'no'"):
        server_of(parts["x"])


def test_a_date_in_a_document_does_not_stop_it_and_an_endless_loop_is_refused():
    dated = "users: [{name: ua, user: {expiry: 2024-01-01T00:00:00Z}}]\n"
    remainder = "clusters: []\ncontexts: [{name: a, context: &c {cluster: ca, user: ua"
    assert "2024" in by_context(KubeConfig(dated + remainder + "}}]"))["a"].document
    endless = KubeConfig(dated + remainder + ", more: *c}}]")
    with pytest.raises(ConfigError, match=r"YAML aliases are not allowed \(line 3\)"):
        by_context(endless)
    with pytest.raises(ConfigError, match="context 'a' cannot be read"):
        by_context(replace(endless, own=True))


# --- uploads ----------------------------------------------------------------------------------


@each_row(
    ("config", "field"),
    [
        (_user(exec={"command": "sh"}), "exec"),
        (_user(**{"auth-provider": {"name": "oidc"}}), "auth-provider"),
        (_user(tokenFile="/etc/passwd"), "tokenFile"),
        (_user(**{"client-certificate": "/etc/passwd"}), "client-certificate"),
        (_user(**{"client-key": "/etc/passwd"}), "client-key"),
        (_cluster(**{"certificate-authority": "/etc/passwd"}), "certificate-authority"),
        (_cluster(**{"insecure-skip-tls-verify": True}), "insecure-skip-tls-verify"),
    ],
)
def test_s7_an_upload_that_runs_or_reads_something_is_refused(config: KubeConfig, field: str):
    assert repr(field) in upload_refusal(config)


def test_s7_an_upload_with_inline_credentials_is_accepted():
    assert upload_refusal(_config()) == ""


def test_s7_an_entry_that_no_context_names_is_looked_at_too():
    users: list[Any] = [*_document()["users"], {"name": "other", "user": {"exec": {}}}]
    assert "'other'" in upload_refusal(_config(users=users))


@each_row(
    "config",
    [
        _config(users=[{"name": "ua", "user": [1]}]),
        _config(users=[{"name": "ua", "user": "text"}]),
        _config(clusters=[{"name": "ca", "cluster": [1]}]),
        _config(users="text"),
        KubeConfig("["),
        KubeConfig(""),
    ],
)
def test_s7_a_malformed_upload_is_refused_and_not_an_error(config: KubeConfig):
    assert upload_refusal(config) != ""


def test_a_config_is_parsed_once_for_its_server(monkeypatch: pytest.MonkeyPatch):
    parsed: list[str] = []

    class Counted(Document):
        def __init__(self, text: str, source: str, **options: Any) -> None:
            parsed.append(text)
            super().__init__(text, source, **options)

    monkeypatch.setattr(config_module, "Document", Counted)
    config = _config()
    assert {server_of(config) for _ in range(3)} == {"http://127.0.0.1:1/"}
    assert len(parsed) == 1
    assert config == _config(), "what is remembered is no difference"


# --- connecting -------------------------------------------------------------------------------


async def test_a_token_becomes_a_header_and_the_host_loses_its_slash():
    connection = await connect(_config())
    assert connection.host == "http://127.0.0.1:1"
    assert dict(connection.headers) == {"Authorization": f"Bearer {SECRET}"}
    assert (connection.ssl, connection.proxy) == (None, None)


async def test_name_and_password_become_a_header():
    connection = await connect(_config("b"))
    basic = base64.b64encode(b"admin:pass").decode()
    assert dict(connection.headers) == {"Authorization": f"Basic {basic}"}


async def test_a_token_file_is_read_beside_the_kubeconfig_without_its_newline(
    tmp_path: pathlib.Path,
):
    (tmp_path / "token").write_text(f"{SECRET}\n")
    path = tmp_path / "k"
    path.write_text(_user(tokenFile="token").document)
    connection = await connect(read_kube_config(path))
    assert dict(connection.headers) == {"Authorization": f"Bearer {SECRET}"}


async def test_a_credential_plugin_is_run():
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": SECRET},
    }
    code = f"print({json.dumps(answer)!r})"
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", code],
        "interactiveMode": "Never",
    }
    connection = await connect(_user(exec=plugin))
    assert dict(connection.headers) == {"Authorization": f"Bearer {SECRET}"}


async def test_the_proxy_of_the_document_is_used():
    connection = await connect(_cluster(**{"proxy-url": "http://proxy:3128"}))
    assert connection.proxy == "http://proxy:3128"


@each_row(
    "config",
    [
        _config("nowhere"),
        _cluster(server=""),
        _cluster(server=None),
        _config(contexts=[{"name": "a", "context": {"cluster": "x"}}]),
        _user(tokenFile="/no/such/file"),
        _user(exec={"command": "/no/such/plugin", "apiVersion": "client.authentication.k8s.io/v1"}),
        _cluster(server="https://h", **{"certificate-authority-data": "not base64!"}),
        _cluster(server="https://h", **{"certificate-authority-data": "bm90IGEgY2VydA=="}),
        _cluster(server="https://h", **{"certificate-authority": "/no/such/ca"}),
        KubeConfig("", "", "my.kubeconfig"),
    ],
)
async def test_credentials_that_cannot_be_loaded_are_a_configuration_error(config: KubeConfig):
    with pytest.raises(ConfigError, match=r"^my\.kubeconfig: "):
        await connect(config)


async def test_outside_a_pod_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        ConfigError, match=r"^the pod's service account, as no kubeconfig is given: "
    ):
        await connect(None)
