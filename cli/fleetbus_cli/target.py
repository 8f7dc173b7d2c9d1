"""Resolves the addresses of the query API, NATS and Redis.

The first of these that has an address wins: flags; the dev stack in the folder given by --dir;
FLEETBUS_API_URL, FLEETBUS_NATS_URL, FLEETBUS_REDIS_URL; a dev stack in this folder or a parent;
~/.fleetbus/config.yaml; the config file of multi_resource_operator. Credentials are those of the
same place; with the address of a flag, those of the environment.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, cast

from fleetbus.errors import ConfigError
from fleetbus.process.access.nats import NATS_FIELDS, NatsAccess, nats_access
from fleetbus.process.access.store import STORE_FIELDS, StoreAccess, store_access
from fleetbus.process.file_errors import file_problem
from fleetbus_cli.config.origins import print_home_file, print_origins, print_other_fleet
from fleetbus_cli.mro_config import MroConfig, mro_config_file, parse_mro_config

_FIELDS: Final = ("api_url", "nats_url", "redis_url", "token", "token_file", "ca")
_ENVIRONMENT: Final = "environment"
_FILE: Final = "file"
_CONFIG: Final = "FLEETBUS_CONFIG"
_NAMED: Final = f" ({_CONFIG})"
"""Behind the path of a config file that a variable names."""
_VARIABLES: Final = {"token_file": "FLEETBUS_API_TOKEN_FILE", "ca": "FLEETBUS_API_CA_FILE"}
"""Environment variables that are not named after the field."""
_LOGIN_FIELDS: Final = (
    *(f"nats_{name}" for name in NATS_FIELDS),
    *(f"redis_{name}" for name in STORE_FIELDS),
)
_DEV: Final = pathlib.Path(".fleetbus") / "dev"
DEV_STATE: Final = "stack.json"
"""The state file of a dev stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Addresses of one fleet; an unknown one is empty."""

    api_url: str = ""
    origins: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Where each value is from, by the name of its field."""
    nats_url: str = field(default="", repr=False)
    redis_url: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca: str = ""
    kubeconfig: str = ""
    """The kubeconfig of the dev stack."""
    hub: str = ""
    """The hub of the dev stack; its name is also the context in `kubeconfig`."""
    state_file: str = ""
    """The dev stack's state file, rewritten whenever its addresses change."""
    nats_values: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """`nats_creds_file` and so on, from where the address of NATS is from."""
    redis_values: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The same for Redis."""
    around: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The dev stack that runs in this folder or a parent, whether it is the fleet or not."""

    def require_nats(self) -> NatsAccess:
        """Return the address of NATS and what to log in with.

        Raises:
            ConfigError: it is unknown, or settings contradict each other.
        """
        return nats_access({**self.nats_values, "url": self.require("nats_url")})

    def require_store(self) -> StoreAccess:
        """Return the address of Redis and what to log in with.

        Raises:
            ConfigError: it is unknown, or settings contradict each other.
        """
        return store_access({**self.redis_values, "url": self.require("redis_url")})

    def home_file(self, name: str) -> str:
        """The file in the home directory that an address is from; empty if it is from elsewhere."""
        kind, _, path = self.origins.get(name, "").partition(" ")
        return path if kind == _FILE and not path.endswith(_NAMED) else ""

    def require(self, name: str) -> str:
        """Return an address that a command needs; one that nobody may expect is noted.

        Raises:
            ConfigError: it is unknown; the message says how to set it.
        """
        value = str(getattr(self, name))
        if not value:
            raise ConfigError(
                f"{name} is not set: no dev fleet runs in {pathlib.Path.cwd()} or a parent folder;"
                f" start one with `fleetbus dev up`, set {_variable(name)}, or add it to"
                f" {_config_file()}"
            )
        print_home_file(self.home_file(name))
        if self.origins.get(name, "").startswith(_ENVIRONMENT):
            here = self.around.get(name)
            if here and here != value:
                print_other_fleet()
        return value


_RESOLVED: Final = tuple(each.name for each in fields(Target) if each.type == "str")
"""The values of a target that a source may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFlags:
    """The flags of a command that reads the query API; None where one is not given."""

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: pathlib.Path | None = None
    ca_file: pathlib.Path | None = None

    def resolve(self) -> Target:
        """Resolve the address and the credentials.

        Raises:
            ConfigError: there are two tokens, or a config file cannot be read.
        """
        target = resolve_target(api_url=self.url)
        if self.token is not None and self.token_file is not None:
            raise ConfigError("--token and --token-file cannot be given together")
        if self.token is not None:
            target = replace(target, token=self.token, token_file="")
        elif self.token_file is not None:
            target = replace(target, token="", token_file=str(self.token_file))
        return replace(target, ca=str(self.ca_file)) if self.ca_file is not None else target


def resolve_target(
    *,
    api_url: str | None = None,
    nats_url: str | None = None,
    redis_url: str | None = None,
    folder: pathlib.Path | None = None,
) -> Target:
    """Resolve every address.

    Args:
        api_url: the value of the flag, if given; likewise for the next two.
        nats_url: see above.
        redis_url: see above.
        folder: a folder with a running dev stack, or its `.fleetbus/dev`; None searches this
            folder and its parents.

    Raises:
        ConfigError: no dev stack runs in that folder, or a config file cannot be read.
    """
    former = read_mro_config()
    flags = {"api_url": api_url, "nats_url": nats_url, "redis_url": redis_url}
    logins = {name: os.environ.get(f"FLEETBUS_{name.upper()}", "") for name in _LOGIN_FIELDS}
    named: Mapping[str, Any] = _named_dev_stack(folder) if folder is not None else {}
    around = _dev_stack()
    config = f"{_config_file()}{_NAMED if _CONFIG in os.environ else ''}"
    sources: Mapping[str, Mapping[str, Any]] = {
        "flag": logins | {name: value for name, value in flags.items() if value},
        f"dev fleet {named.get('state_file', '')} (--dir)": named,
        _ENVIRONMENT: logins | {name: os.environ.get(_variable(name), "") for name in _FIELDS},
        f"dev fleet {around.get('state_file', '')}": around,
        f"{_FILE} {config}": _read_yaml(_config_file()),
        f"{_FILE} {mro_config_file()}": {"api_url": former.api_url},
    }
    target = _first_values(sources, around)
    print_origins(target.origins)
    return target


def _first_values(named: Mapping[str, Mapping[str, Any]], around: Mapping[str, Any]) -> Target:
    """Take each value from the first source that has it."""
    sources = list(named.values())
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    for name in _RESOLVED:
        for origin, source in named.items():
            if source.get(name):
                values[name] = str(source[name])
                origins[name] = f"{origin} {_variable(name)}" if origin == _ENVIRONMENT else origin
                break
    return Target(
        **(values | _token_of(sources)),
        origins=origins,
        nats_values=_login_of(sources, "nats_", NATS_FIELDS),
        redis_values=_login_of(sources, "redis_", STORE_FIELDS),
        around=around,
    )


def _token_of(sources: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the token, or its file, of the first source that has one of them."""
    having = (source for source in sources if source.get("token") or source.get("token_file"))
    source = next(having, cast("Mapping[str, Any]", {}))
    return {name: str(source.get(name) or "") for name in ("token", "token_file")}


def _login_of(
    sources: Sequence[Mapping[str, Any]], prefix: str, names: Sequence[str]
) -> dict[str, Any]:
    """Return the login of the source of an address: no other server sees those credentials."""
    having = (source for source in sources if source.get(f"{prefix}url"))
    source = next(having, cast("Mapping[str, Any]", {}))
    return {name: source.get(f"{prefix}{name}") for name in names}


def _variable(name: str) -> str:
    return _VARIABLES.get(name) or f"FLEETBUS_{name.upper()}"


def _named_dev_stack(folder: pathlib.Path) -> Mapping[str, Any]:
    state = _running_stack(folder) or _running_stack(folder / _DEV)
    if not state:
        raise ConfigError(
            f"{folder}: no dev fleet runs in this folder; `fleetbus dev up` starts one"
        )
    return state


def _dev_stack() -> Mapping[str, Any]:
    here = pathlib.Path.cwd()
    stacks = (_running_stack(folder / _DEV) for folder in (here, *here.parents))
    return next(filter(None, stacks), cast("Mapping[str, Any]", {}))


def _running_stack(folder: pathlib.Path) -> Mapping[str, Any]:
    """Read the state of the dev stack in a folder; empty if none runs there."""
    try:
        parsed: object = json.loads((folder / DEV_STATE).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(parsed, dict):
        return {}
    state = cast("dict[str, Any]", parsed)
    if not _is_alive(state.get("pid")):
        return {}
    clusters = cast("list[str]", state.get("clusters") or [""])
    return state | {"hub": clusters[0], "state_file": str((folder / DEV_STATE).absolute())}


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _config_file() -> pathlib.Path:
    return pathlib.Path(os.environ.get(_CONFIG, "~/.fleetbus/config.yaml")).expanduser()


def read_mro_config() -> MroConfig:
    """Read the configuration file of multi_resource_operator; empty if there is none.

    Raises:
        ConfigError: it cannot be read.
    """
    return parse_mro_config(_read_yaml(mro_config_file()))


def _read_yaml(path: pathlib.Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read: {file_problem(e)}") from e
    import yaml  # noqa: PLC0415 -- import cost

    try:
        content: object = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ConfigError(f"{path}: not valid YAML: {e}") from e
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not a mapping with keys such as api_url")
    return cast("dict[str, Any]", content)
