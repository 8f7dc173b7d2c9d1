"""Settings shared by all services: environment variables with the prefix `FLEETBUS_`."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Self, TypeVar

import structlog
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.errors import ConfigError
from fleetbus.process.access.nats import NatsAccess, nats_access
from fleetbus.process.access.store import StoreAccess, store_access
from fleetbus.process.close_names import close_names
from fleetbus.process.durations import parse_duration
from fleetbus.process.log_levels import LogLevel
from fleetbus.process.logs import LogFormat

S = TypeVar("S", bound=BaseSettings)
log = structlog.get_logger()

_MESSAGES: Final = {"time_delta_parsing": "not a duration such as 250ms, 30s, 5m or 1h"}
"""Replacements for pydantic's messages."""
MAX_SHARDS: Final = 256
"""Every second each process asks every shard for its state, and a list of the fleet asks all."""
_ALIKE: Final = 0.86
"""From 0 to 1, including the common prefix: allows two wrong letters, or a missing `_URL`."""
_SERVICE_LINK: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_.*)?)$")


def _duration(value: Any) -> Any:
    """Parse `30s`, `5m`, `250ms` or a bare number of seconds; anything else is left to pydantic."""
    if not isinstance(value, str) or not value[:1].isdigit():
        return value
    return parse_duration(value + "s" if value[-1:].isdigit() else value)


Duration = Annotated[timedelta, BeforeValidator(_duration)]
"""A duration of a setting, as charts write them."""


FilePath = Annotated[pathlib.Path | None, BeforeValidator(lambda value: value or None)]
"""A file; empty means none, not the current folder."""


class ProviderSettings(BaseModel):
    """One source of clusters; the other fields are options of the provider."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    """`cluster`, `secrets`, `cluster-api`, `cluster-inventory`, `kubeconfig`, `file` or `kind`."""

    prefix: str = ""
    """Put before each name as `<prefix>-<name>`, so that two providers cannot collide."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The provider's own fields."""
        return self.model_extra or {}


class AddressSettings(BaseSettings):
    """The addresses that API servers of members may have."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_", frozen=True, use_attribute_docstrings=True, extra="ignore"
    )

    allow_loopback: bool = False
    """Whether API servers of members may be on this machine, also over plain http; for development
    only (rule S7)."""


class SharedSettings(AddressSettings):
    """The addresses of the hub, NATS and Redis, and the health server and logs of the process.

    All files with credentials and certificates are read anew for each connection.
    """

    nats_url: str = Field(default="nats://127.0.0.1:4222", repr=False)
    """Addresses of NATS, separated by commas; `tls://` refuses servers without TLS."""

    nats_creds_file: FilePath = None
    """A .creds file, with user JWT and seed; set at most one way to log in."""

    nats_nkey_file: FilePath = None
    """A file with the seed of an nkey."""

    nats_username: str = ""
    """User of NATS; needs the password file."""

    nats_password_file: FilePath = None
    """A file with that user's password."""

    nats_ca_file: FilePath = None
    """The CA certificates that sign the servers' certificates, in PEM; by default those that the
    machine trusts. Servers without TLS are then refused."""

    nats_cert_file: FilePath = None
    """Client certificate for TLS, in PEM; needs the key file."""

    nats_key_file: FilePath = None
    """The unencrypted key of that certificate."""

    nats_inbox_prefix: str = ""
    """Subject prefix for replies, for a user who may subscribe to one inbox only; by default
    `_INBOX.` and the name of the connection."""

    redis_url: str = Field(default="redis://127.0.0.1:6379/0", repr=False)
    """Address of Redis or Valkey; `rediss` instead of `redis` uses TLS."""

    redis_username: str = ""
    """ACL user; needs the password file. Empty means the default user."""

    redis_password_file: FilePath = None
    """A file with that user's password."""

    redis_sentinel_username: str = ""
    """ACL user of the Sentinels; needs their password file."""

    redis_sentinel_password_file: FilePath = None
    """A file with the password for the Sentinels."""

    redis_ca_file: FilePath = None
    """The CA certificates that sign the servers' certificates, in PEM; by default those that the
    machine trusts."""

    redis_cert_file: FilePath = None
    """Client certificate for TLS, in PEM; needs the key file."""

    redis_key_file: FilePath = None
    """The unencrypted key of that certificate."""

    shards: int = Field(default=1, ge=1, le=MAX_SHARDS)
    """Shards of the snapshot, equal in all processes and fixed when the snapshot is set up: each is
    on one server of a Redis or Valkey Cluster. More shards than servers leave room to grow; one is
    enough for a single server."""

    hub_kubeconfig: pathlib.Path | None = None
    """Kubeconfig of the hub; by default the pod's service account is used, if there is one."""

    hub_context: str = ""
    """Context of the hub in that file; empty means its current context."""

    hub_cluster: str = ""
    """Name of the hub in the fleet; empty if the provider `cluster` finds it by its address, or if
    the fleet has no hub."""

    providers: list[ProviderSettings] = Field(default_factory=list[ProviderSettings])
    """The sources of clusters, as JSON: `[{"type": "cluster"}]`."""

    health_host: str = "127.0.0.1"
    """The address for /healthz, /readyz and /metrics; the chart sets the pod's address."""

    health_port: int = Field(default=0, ge=0, le=65535)
    """Port of the health server; 0 chooses a free one."""

    health_port_file: pathlib.Path | None = None
    """File for the chosen port, for the program that started the process."""

    log_format: LogFormat = "json"
    """`json` for machines, `text` for people."""

    log_level: LogLevel = "info"
    """`debug`, `info`, `warning` or `error`."""

    log_levels_file: pathlib.Path | None = None
    """YAML like `{default: info, controllers: {copier: debug}}` in place of `log_level`; a change
    takes effect while the process runs."""

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        _ = self.nats, self.store
        return self

    @property
    def nats(self) -> NatsAccess:
        """The address of NATS and the files to log in with.

        Raises:
            ConfigError: contradicting settings; not after the settings were loaded.
        """
        return nats_access(_with_prefix(self, "nats_"))

    @property
    def store(self) -> StoreAccess:
        """The address of Redis or Valkey and the files to log in with.

        Raises:
            ConfigError: contradicting settings; not after the settings were loaded.
        """
        return store_access(_with_prefix(self, "redis_"))


def _with_prefix(settings: SharedSettings, prefix: str) -> dict[str, Any]:
    names = [name for name in SharedSettings.model_fields if name.startswith(prefix)]
    return {name.removeprefix(prefix): getattr(settings, name) for name in names}


def load_settings(kind: type[S], **overrides: Any) -> S:
    """Read settings from the environment; arguments take precedence.

    Raises:
        ConfigError: a value is missing or invalid; the message names the variable.
    """
    try:
        return kind(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as e:
        first = e.errors()[0]
        place = [str(step) for step in first["loc"]]
        where = f"setting {_variable(kind, *place)}" if place else "settings"
        raise ConfigError(f"{where}: {_MESSAGES.get(first['type'], first['msg'])}") from e
    except ValueError as e:  # pydantic-settings: invalid JSON
        match = re.search(r'field "(\w+)"', str(e))
        problem = f"setting {_variable(kind, match[1])}" if match else f"settings: {e}"
        raise ConfigError(f"{problem}: {_not_json(e.__cause__)}" if match else problem) from e


def _not_json(cause: BaseException | None) -> str:
    """The problem and its position, without the text, which may contain secrets."""
    if isinstance(cause, json.JSONDecodeError):
        return f"not valid JSON: {cause.msg} at character {cause.pos + 1}"
    return "not valid JSON"


def unknown_settings(*kinds: type[BaseSettings]) -> list[str]:
    """Variables with the prefix of the first class that are no setting of any, sorted.

    Variables that Kubernetes sets in every pod for a Service of that name are left out.
    """
    variables = {_variable(kind, name) for kind in kinds for name in kind.model_fields}
    prefix = _variable(kinds[0], "")
    return sorted(
        name
        for name in os.environ
        if name.startswith(prefix) and name not in variables and not _SERVICE_LINK.search(name)
    )


def tell_unknown_settings(*kinds: type[BaseSettings]) -> None:
    """Warn of each variable that looks like a setting but has no effect.

    These are the unknown ones with the prefix of the first class, and misspelt shared settings:
    other programs may have variables with `FLEETBUS_`, so these must be similar to a setting.
    """
    own_settings = dict.fromkeys(unknown_settings(*kinds) if kinds else [], "")
    shared = {_variable(SharedSettings, name) for name in SharedSettings.model_fields}
    others = unknown_settings(SharedSettings)
    suggestions = {name: close_names(name, shared, cutoff=_ALIKE) for name in others}
    for name, suggestion in (
        own_settings | {name: near[0] for name, near in suggestions.items() if near}
    ).items():
        log.warning(
            "setting_unknown", name=name, **({"did_you_mean": suggestion} if suggestion else {})
        )


def _variable(kind: type[BaseSettings], name: str, *inner: str) -> str:
    """The environment variable of a field; parts inside it keep their spelling."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    return ".".join([f"{prefix}{name}".upper(), *inner])


def read_settings_file(path: str) -> Any:
    """Parse the YAML or JSON file whose path is the value of a setting.

    Raises:
        ValueError: it cannot be read; the message names the file and does not quote it.
    """
    import yaml  # noqa: PLC0415 -- most processes do not need it

    try:
        return yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise ValueError(f"{path}: {e.strerror or e}") from e
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{path}: invalid YAML{where}") from None


def write_port_file(path: pathlib.Path | None, port: int) -> None:
    """Write the chosen port to a file, atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None:
        return
    temporary = path.with_name(f"{path.name}.part")
    try:
        temporary.write_text(f"{port}\n", encoding="ascii")
        os.replace(temporary, path)  # noqa: PTH105 -- atomic
    except OSError as e:
        raise ConfigError(f"{path}: the port file cannot be written: {e.strerror or e}") from e
