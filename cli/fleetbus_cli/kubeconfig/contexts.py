"""Runs `fleetbus kubeconfig`: builds the contexts, and prints or merges them."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.api_token import ApiToken, find_token, kubeconfig_place
from fleetbus_cli.api_url import split_api_url
from fleetbus_cli.kubeconfig.credential import API_VERSION
from fleetbus_cli.kubeconfig.merge import default_path, merge_into
from fleetbus_cli.target import ApiFlags, Target

JsonObject = dict[str, Any]
_FLEET: Final = "-"
_MAX_NAME: Final = 63
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """The contexts to write.

    Attributes:
        name: of the context of the fleet; those of clusters are `<name>-<cluster>`.
        clusters: their names; None for all that the user may list.
        namespace: of the contexts; empty for none.
    """

    name: str
    clusters: Sequence[str] | None
    namespace: str


def write_contexts(contexts: Contexts, flags: ApiFlags, *, merge: bool) -> int:
    """Print the contexts, or write them into the kubeconfig; return the exit status.

    Raises:
        ConfigError: no address is set, or the kubeconfig is not one, or cannot be written.
    """
    if not contexts.name or len(contexts.name) > _MAX_NAME or not contexts.name.isprintable():
        raise ConfigError(
            f"--name {contexts.name[:80]!r}: not 1 to {_MAX_NAME} printable characters"
        )
    target = flags.resolve()
    if "@" in split_api_url(target.require("api_url")).netloc:
        raise ConfigError("api_url has a password, which belongs in no kubeconfig")
    try:
        clusters = contexts.clusters if contexts.clusters is not None else _list(target)
    except ApiFailed as e:
        printer.note(f"fleetbus: {e}")
        return 1
    if not clusters and contexts.clusters is None:
        printer.note("fleetbus: you may not list any cluster: name them with --cluster")
    token = find_token(target)
    if problem := _token_problem(target, token):
        printer.note(f"fleetbus: {problem}")
    document = _build(contexts, clusters, target, token)
    if merge:
        _merge(document, target)
    else:
        printer.block(yaml.safe_dump(document, sort_keys=False).rstrip())
    return 0


def _merge(document: JsonObject, target: Target) -> None:
    path = default_path()
    merge_into(path, document, servers=f"{target.api_url.rstrip('/')}/kube/")
    names: list[str] = [entry["name"] for entry in document["contexts"]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    printer.line(f"{path}: contexts {', '.join(names[:_SHOWN])}{more}")
    printer.line(f"kubectl --context {names[0]} get pods -A")


def _token_problem(target: Target, token: ApiToken) -> str:
    """Why kubectl will send no token; empty if it will, or need not."""
    is_secure = target.api_url.startswith("https://")
    if token.token and not is_secure:
        return f"kubectl does not send the token to {target.api_url}: it needs https"
    if is_secure and not token.token:
        return "no token is configured; set FLEETBUS_API_TOKEN_FILE and run this again"
    return ""


def _list(target: Target) -> list[str]:
    answer = ApiClient(target).get("/fleet/v1/clusters")
    return [str(item["name"]) for item in answer["items"]]


def _build(
    contexts: Contexts, clusters: Sequence[str], target: Target, token: ApiToken
) -> JsonObject:
    """The kubeconfig; all contexts have one user."""
    places = {contexts.name: _FLEET} | {f"{contexts.name}-{name}": name for name in clusters}
    user = _user(target, token)
    document: JsonObject = {"apiVersion": "v1", "kind": "Config"}
    document["clusters"] = [
        {"name": name, "cluster": _cluster(target, place)} for name, place in places.items()
    ]
    named: JsonObject = {"user": contexts.name} if user else {}
    if contexts.namespace:
        named["namespace"] = contexts.namespace
    document["contexts"] = [
        {"name": name, "context": {"cluster": name, **named}} for name in places
    ]
    document["users"] = [{"name": contexts.name, "user": user}] if user else []
    return {**document, "current-context": contexts.name}


def _cluster(target: Target, place: str) -> JsonObject:
    server = f"{target.require('api_url').rstrip('/')}/kube/{urllib.parse.quote(place, safe='')}"
    ca = {"certificate-authority": _absolute(target.ca)} if target.ca else {}
    return {"server": server, **ca}


def _user(target: Target, token: ApiToken) -> JsonObject:
    """Build the user entry for kubectl, never with the token itself, which others could read."""
    if not token.token:
        return {}
    if target.token_file and not target.token:
        return {"tokenFile": _absolute(target.token_file)}
    command = shutil.which("fleetbus") and "fleetbus"
    return {
        "exec": {
            "apiVersion": API_VERSION,
            "command": command or str(pathlib.Path(sys.executable).parent / "fleetbus"),
            "args": ["kubeconfig", "credential", "--api-url", target.api_url],
            "env": _environment(target),
            "interactiveMode": "Never",
            "installHint": "fleetbus provides the token of the query API: pip install fleetbus",
        }
    }


def _environment(target: Target) -> list[JsonObject]:
    """The kubeconfig whose token is sent, as it is now: kubectl may be used with another one."""
    if target.token:
        return []
    place = kubeconfig_place()
    files = os.pathsep.join(map(_absolute, filter(None, place.files.split(os.pathsep))))
    variables = {"FLEETBUS_HUB_CONTEXT": place.context, "FLEETBUS_HUB_KUBECONFIG": files}
    return [{"name": name, "value": value} for name, value in variables.items()]


def _absolute(path: str) -> str:
    return str(pathlib.Path(path).expanduser().absolute())
