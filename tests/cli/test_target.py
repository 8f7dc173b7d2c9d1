"""Where the command line finds a fleet; bad files are one message, never a traceback."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from fleetbus.errors import ConfigError
from fleetbus_cli.config.origins import note_origins
from fleetbus_cli.mro_config import create_mro_config, remove_mro_config
from fleetbus_cli.run.run import run_settings
from fleetbus_cli.target import resolve_target


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_URL", "NATS_URL", "REDIS_URL", "TOKEN", "CA", "CONFIG", "KUBECONFIG"):
        monkeypatch.delenv(f"FLEETBUS_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "below")


def write_stack(tmp_path: pathlib.Path, pid: int) -> None:
    folder = tmp_path / "work" / ".fleetbus" / "dev"
    folder.mkdir(parents=True)
    state = {"pid": pid, "api_url": "http://stack", "nats_url": "nats://stack"}
    (folder / "stack.json").write_text(json.dumps(state))


def write_config(tmp_path: pathlib.Path, text: str) -> None:
    folder = tmp_path / "home" / ".fleetbus"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(text)


def test_a_flag_wins_over_everything(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETBUS_API_URL", "http://env")
    write_stack(tmp_path, os.getpid())
    assert resolve_target(api_url="http://flag").api_url == "http://flag"
    assert resolve_target().api_url == "http://env"


def test_an_environment_that_names_another_fleet_than_runs_here_is_noted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note_origins()
    monkeypatch.setenv("FLEETBUS_API_URL", "http://env")
    monkeypatch.setenv("FLEETBUS_NATS_URL", "nats://stack")
    resolve_target().require("api_url")
    assert capsys.readouterr().err == ""
    write_stack(tmp_path, os.getpid())
    target = resolve_target()
    target.require("nats_url")
    assert capsys.readouterr().err == ""
    for _ in range(2):
        assert target.require("api_url") == "http://env"
    assert capsys.readouterr().err.count("names another fleet than the dev fleet that runs") == 1


def test_a_running_dev_stack_of_a_folder_above_is_found(tmp_path: pathlib.Path) -> None:
    write_stack(tmp_path, os.getpid())
    write_config(tmp_path, "api_url: http://config\nredis_url: redis://config\n")
    target = resolve_target()
    assert target.api_url == "http://stack"
    assert target.redis_url == "redis://config"


def test_a_dev_stack_that_is_named_is_found_from_anywhere_and_wins_over_the_environment(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stack(tmp_path, os.getpid())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("FLEETBUS_NATS_URL", "nats://env")
    assert resolve_target().nats_url == "nats://env"
    for folder in (tmp_path / "work", pathlib.Path("../work/.fleetbus/dev")):
        assert resolve_target(folder=folder).nats_url == "nats://stack"
    assert (
        resolve_target(folder=tmp_path / "work", nats_url="nats://flag").nats_url == "nats://flag"
    )
    with pytest.raises(ConfigError, match="elsewhere: no dev fleet runs in this folder"):
        resolve_target(folder=elsewhere)


def test_the_state_of_a_dev_stack_that_has_ended_is_not_believed(tmp_path: pathlib.Path) -> None:
    write_stack(tmp_path, 2**22 - 1)  # above every process id of this machine
    assert resolve_target().api_url == ""


def test_the_seeds_file_is_read_last(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "home" / ".multi-cluster-operator"
    folder.mkdir(parents=True)
    (folder / "config").write_text("server: 8888\n")
    assert resolve_target().api_url == "http://127.0.0.1:8888"
    (folder / "config").write_text("serverIP: 10.1.2.3\nserverPort: 31888\n")
    assert resolve_target().api_url == "http://10.1.2.3:31888"


def test_the_seeds_file_goes_with_the_fleet_that_it_was_created_for(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "home" / ".multi-cluster-operator" / "config"
    file.parent.parent.mkdir(exist_ok=True)
    create_mro_config("http://127.0.0.1:4711")
    assert resolve_target().api_url == "http://127.0.0.1:4711"
    remove_mro_config("http://127.0.0.1:4712")
    assert file.exists()
    remove_mro_config("http://127.0.0.1:4711")
    assert not file.parent.exists()
    file.parent.mkdir()
    file.write_text("serverIP: 127.0.0.1\nserverPort: 4711\n")  # somebody's own
    remove_mro_config("http://127.0.0.1:4711")
    assert file.exists()


def test_nothing_known_is_reported_with_what_to_do() -> None:
    with pytest.raises(
        ConfigError, match=r"no dev fleet runs in \S+/below or a parent folder.*FLEETBUS_API_URL"
    ):
        resolve_target().require("api_url")


@pytest.mark.parametrize("text", ["api_url: [", "- a list\n"])
def test_a_broken_file_is_named(tmp_path: pathlib.Path, text: str) -> None:
    write_config(tmp_path, text)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        resolve_target()


def test_s2_the_login_is_that_of_the_place_which_has_the_address(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETBUS_NATS_NKEY_FILE", "/env/seed")
    monkeypatch.setenv("FLEETBUS_REDIS_PASSWORD_FILE", "/env/password")
    write_config(
        tmp_path,
        "nats_url: nats://config\nnats_creds_file: ~/creds\n"
        "redis_url: rediss://config\nredis_ca_file: /config/ca.crt\n",
    )
    of_config = resolve_target()
    assert str(of_config.require_nats().creds).endswith("/home/creds)")
    assert of_config.require_nats().nkey is None
    assert of_config.require_store().password is None
    assert str(of_config.require_store().tls.ca) == "FLEETBUS_REDIS_CA_FILE (/config/ca.crt)"
    of_flag = resolve_target(nats_url="nats://flag", redis_url="redis://flag")
    assert str(of_flag.require_nats().nkey) == "FLEETBUS_NATS_NKEY_FILE (/env/seed)"
    assert of_flag.require_nats().creds is None
    assert of_flag.require_store().password is not None
    assert not of_flag.require_store().tls
    write_stack(tmp_path, os.getpid())
    of_stack = resolve_target(redis_url="redis://flag")
    assert of_stack.require_nats().nkey is None, "a dev fleet sees no login of another"
    monkeypatch.setenv("FLEETBUS_PROVIDERS", "[]")
    settings = run_settings(of_stack, [], [])
    assert settings.nats == of_stack.require_nats()
    assert settings.store == of_stack.require_store()


def test_s2_no_repr_shows_an_address_with_its_password() -> None:
    target = resolve_target(nats_url="nats://u:CANARY@h", redis_url="redis://u:CANARY@h")
    assert "CANARY" not in repr((target, target.require_nats(), target.require_store()))
