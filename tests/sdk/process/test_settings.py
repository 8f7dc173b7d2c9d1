"""Settings from the environment: each mistake is one line that names the variable."""

from __future__ import annotations

import pathlib
from datetime import timedelta

import pytest
from pydantic_settings import BaseSettings, SettingsConfigDict
from structlog.testing import capture_logs

from fleetbus.errors import ConfigError
from fleetbus.process.settings import (
    Duration,
    SharedSettings,
    load_settings,
    tell_unknown_settings,
    unknown_settings,
    write_port_file,
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SharedSettings.model_fields:
        monkeypatch.delenv(f"FLEETBUS_{name.upper()}", raising=False)


class _Own(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="FLEETBUS_WATCHER_", frozen=True)

    cluster: str
    every: Duration = timedelta(seconds=1)


def test_an_empty_environment_gives_the_defaults():
    settings = load_settings(SharedSettings)
    assert settings.nats_url == "nats://127.0.0.1:4222"
    assert settings.health_host == "127.0.0.1"
    assert settings.providers == []


def test_the_environment_wins_over_defaults_and_arguments_over_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_NATS_URL", "nats://bus:4222")
    monkeypatch.setenv("FLEETBUS_HEALTH_PORT", "8080")
    settings = load_settings(SharedSettings, health_port=9090, nats_url=None)
    assert (settings.nats_url, settings.health_port) == ("nats://bus:4222", 9090)


def test_providers_are_json_and_keep_their_own_fields(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_PROVIDERS", '[{"type": "file", "prefix": "a", "path": "/x"}]')
    (provider,) = load_settings(SharedSettings).providers
    assert (provider.type, provider.prefix, dict(provider.options)) == ("file", "a", {"path": "/x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLEETBUS_HEALTH_PORT", "http"),
        ("FLEETBUS_HEALTH_PORT", "70000"),
        ("FLEETBUS_HEALTH_PORT", "-1"),
        ("FLEETBUS_LOG_FORMAT", "xml"),
        ("FLEETBUS_LOG_LEVEL", "loud"),
        ("FLEETBUS_PROVIDERS", '[{"prefix": "a"}]'),
        ("FLEETBUS_PROVIDERS", '{"type": "file"}'),
        ("FLEETBUS_PROVIDERS", "file"),
        ("FLEETBUS_PROVIDERS", '[{"type": '),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_settings(SharedSettings)
    message = str(caught.value)
    assert message.startswith(f"setting {name}")
    assert "\n" not in message


def test_what_is_no_duration_is_reported_with_examples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_WATCHER_EVERY", "ninety")
    with pytest.raises(ConfigError, match=r"EVERY: not a duration such as 250ms, 30s, 5m or 1h$"):
        load_settings(_Own, cluster="eu1")


@pytest.mark.parametrize("text", ["1000000d", "99999999999999d", "9" * 400])
def test_a_duration_beyond_all_times_is_reported(monkeypatch: pytest.MonkeyPatch, text: str):
    """It ended the process with a traceback, at start or when it was subtracted from a time."""
    monkeypatch.setenv("FLEETBUS_WATCHER_EVERY", text)
    with pytest.raises(ConfigError, match=r"EVERY.*longer than 100 years"):
        load_settings(_Own, cluster="eu1")


def test_bad_json_is_reported_with_its_place_and_without_its_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_PROVIDERS", '[{"type": S3CRET')
    with pytest.raises(ConfigError, match=r"not valid JSON: Expecting value at character 11") as e:
        load_settings(SharedSettings)
    assert "S3CRET" not in str(e.value)


def test_variables_that_are_no_setting_are_found_and_not_those_of_kubernetes(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("CLUSTER", "EVRY", "PORT", "PORT_80_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT_X"):
        monkeypatch.setenv(f"FLEETBUS_WATCHER_{name}", "x")
    assert unknown_settings(_Own) == ["FLEETBUS_WATCHER_EVRY"]


def test_a_misspelt_setting_is_reported_and_what_merely_begins_like_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in (
        "REDIS_ULR",
        "NATS",
        "LOG_LEVL",
        "WATCHER_EVRY",
        "API_URL",
        "EXAMPLE_HUB",
        "NATS_PORT",
    ):
        monkeypatch.setenv(f"FLEETBUS_{name}", "1")
    with capture_logs() as lines:
        tell_unknown_settings(_Own)
    assert {line["name"]: line.get("did_you_mean") for line in lines} == {
        "FLEETBUS_WATCHER_EVRY": None,
        "FLEETBUS_REDIS_ULR": "FLEETBUS_REDIS_URL",
        "FLEETBUS_NATS": "FLEETBUS_NATS_URL",
        "FLEETBUS_LOG_LEVL": "FLEETBUS_LOG_LEVEL",
    }


def test_a_nested_field_is_named_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_PROVIDERS", '[{"type": "file"}, {"type": 7}]')
    with pytest.raises(ConfigError, match=r"^setting FLEETBUS_PROVIDERS\.1\.type: "):
        load_settings(SharedSettings)


def test_a_missing_setting_is_named_with_the_services_own_prefix(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FLEETBUS_WATCHER_CLUSTER", raising=False)
    with pytest.raises(ConfigError, match=r"^setting FLEETBUS_WATCHER_CLUSTER: Field required$"):
        load_settings(_Own)


def test_the_port_file_holds_the_port_and_nothing_is_left_beside_it(tmp_path: pathlib.Path):
    path = tmp_path / "health.port"
    write_port_file(path, 1)
    write_port_file(path, 4711)
    assert path.read_text() == "4711\n"
    assert list(tmp_path.iterdir()) == [path]
    write_port_file(None, 4711)


def test_a_port_file_that_cannot_be_written_is_a_configuration_error(tmp_path: pathlib.Path):
    with pytest.raises(ConfigError, match=r"missing/port: the port file cannot be written"):
        write_port_file(tmp_path / "missing" / "port", 1)
