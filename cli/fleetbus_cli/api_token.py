"""The token for the query API: where it comes from, and to whom it may be sent.

The first that is set wins: `--token`, `--token-file`, FLEETBUS_TOKEN, FLEETBUS_API_TOKEN_FILE,
`token` or `token_file` in ~/.fleetbus/config.yaml; else the token of the current context of the
kubeconfig, and that one only over https: it is meant for an API server, and nobody named it here.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from fleetbus.errors import ConfigError
from fleetbus.process.access.tokens import is_bearer_token
from fleetbus_cli.api_url import split_api_url
from fleetbus_cli.target import Target

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class ApiToken(NamedTuple):
    """A token and where it is from; empty if there is none."""

    token: str = ""
    source: str = ""


def find_token(target: Target) -> ApiToken:
    """Find the token to send to the query API; a file is read anew each time.

    Raises:
        ConfigError: it cannot be read, is not a token, or would be sent in clear text.
    """
    parts = split_api_url(target.api_url)
    if target.token or target.token_file:
        if parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise ConfigError(
                f"refusing to send a token to {target.api_url} in clear text: use https, or give"
                " no token"
            )
        if target.token:
            return ApiToken(_check(target.token, "the token"), "the token that was given")
        return _read_file(pathlib.Path(target.token_file).expanduser(), target.token_file)
    return _read_kubeconfig() if parts.scheme == "https" else ApiToken()


def _read_file(path: pathlib.Path, source: str) -> ApiToken:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as e:
        raise ConfigError(f"token file {source}: {e.strerror or 'cannot be read'}") from e
    except UnicodeDecodeError:
        text = ""
    return ApiToken(_check(text, f"token file {source}"), f"the token in {source}")


def _check(token: str, source: str) -> str:
    """Refuse what no server issues: in a header it would end up in an error message."""
    if not is_bearer_token(token):
        raise ConfigError(f"{source}: not a bearer token, which is one word of ASCII characters")
    return token


class KubeconfigPlace(NamedTuple):
    """The kubeconfig whose token is sent where none is configured for the query API."""

    files: str
    """As in KUBECONFIG."""
    context: str


def kubeconfig_place() -> KubeconfigPlace:
    """Where the token of a kubeconfig would be read.

    Raises:
        ConfigError: a file cannot be read.
    """
    files, merged = _open_kubeconfig()
    return KubeconfigPlace(files, os.environ.get("FLEETBUS_HUB_CONTEXT") or merged.current)


def _open_kubeconfig() -> tuple[str, _Merged]:
    setting = os.environ.get("FLEETBUS_HUB_KUBECONFIG") or os.environ.get("KUBECONFIG") or ""
    paths = [path for path in setting.split(os.pathsep) if path] or ["~/.kube/config"]
    merged = _merge([pathlib.Path(path).expanduser() for path in paths])
    return setting or paths[0], merged


def _read_kubeconfig() -> ApiToken:
    """The token of the current context, as kubectl would find it; none if it logs in otherwise."""
    files, merged = _open_kubeconfig()
    context_name = os.environ.get("FLEETBUS_HUB_CONTEXT") or merged.current
    context = merged.contexts.get(context_name, {})
    user = merged.users.get(str(context.get("user")), {})
    source = f"the token of context {context_name!r} in {files}"
    if file := user.get("tokenFile"):
        return ApiToken(_read_file(pathlib.Path(str(file)), str(file)).token, source)
    token = str(user.get("token") or "")
    return ApiToken(_check(token, source), source) if token else ApiToken()


class _Merged(NamedTuple):
    """Several kubeconfigs, merged: of two equal names the first counts."""

    current: str
    contexts: dict[str, Mapping[str, Any]]
    users: dict[str, Mapping[str, Any]]


def _merge(paths: list[pathlib.Path]) -> _Merged:
    from fleetbus.kube.connection.kubeconfig_document import Document  # noqa: PLC0415 -- cost

    merged = _Merged("", {}, {})
    for path in paths:
        try:
            document = Document(path.read_text(encoding="utf-8"), str(path), aliases=True)
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path}: cannot be read: {type(e).__name__}") from e
        merged = merged._replace(current=merged.current or document.current_context)
        for section, entries in (("contexts", merged.contexts), ("users", merged.users)):
            for entry in document.entries(section):
                fields = entry.get(section.removesuffix("s"))
                if isinstance(fields, dict):
                    entries.setdefault(str(entry["name"]), cast("dict[str, Any]", fields))
    return merged
