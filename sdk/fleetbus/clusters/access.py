"""Access data in Secrets of the hub: a kubeconfig, or an equivalent (rule S7)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import orjson
import structlog

from fleetbus.clusters.mirror import Mirror, Objects, Place
from fleetbus.errors import ConfigError, KubeError
from fleetbus.kube.client import Object
from fleetbus.kube.connection.backoff import ApiBackoff
from fleetbus.kube.connection.config import KubeConfig, Renew, check_access, read_upload
from fleetbus.kube.json_fields import mapping, string

log = structlog.get_logger()

KUBECONFIG_KEY: Final = "kubeconfig"
_SECRETS: Final = "secrets"
ANSWERS_WITHIN: Final = timedelta(seconds=5)
"""Time that the hub has to say what the access data of a member are now."""

Access = tuple[KubeConfig | None, str]
"""Access data, or the reason why there is none."""

ReadSecret = Callable[[str, Object], Access]
"""Takes the name of a Secret for messages, and the Secret."""


class SecretReader:
    """Reads access data from Secrets; each version of a Secret is parsed only once."""

    def __init__(self, read: ReadSecret) -> None:
        self._read = read
        self._known: dict[Place, tuple[Object, Access]] = {}
        self._mirrors: Sequence[Mirror] = ()

    def follow(self, mirrors: Sequence[Mirror]) -> None:
        """Use these mirrors to read Secrets again when their credentials are refused (rule W19)."""
        self._mirrors = [each for each in mirrors if each.resource.plural == _SECRETS]

    def read(self, place: Place, secret: Object) -> Access:
        """The access data in the Secret at this place."""
        cached = self._known.get(place)
        if cached is not None and _is_same(cached[0], secret):
            return cached[1]
        config, problem = self._read("/".join(place), secret)
        if config is not None:
            config = replace(config, renew=Renewal(partial(self._read_anew, place)))
        self._known[place] = (mapping(secret, "metadata"), (config, problem))
        return config, problem

    async def _read_anew(self, place: Place) -> KubeConfig | None:
        for mirror in self._mirrors:
            if secret := await mirror.read_anew(place):
                # In a thread: parsing a large kubeconfig takes long.
                return (await asyncio.to_thread(self._read, "/".join(place), secret))[0]
        return None

    def forget_all_but(self, secrets: Objects) -> None:
        """Forget Secrets that no longer exist."""
        for place in self._known.keys() - secrets.keys():
            del self._known[place]


class Renewal:
    """Reads access data from the hub again when the current ones are refused (rule W19).

    The watch reports a changed Secret, but it may be late or hang. All callers together read no
    more often than the back-off of one API server allows.

    Args:
        read: reads them.
    """

    def __init__(self, read: Renew) -> None:
        self._read = read
        self._backoff = ApiBackoff()
        self._reading = asyncio.Lock()
        self._next_at = float("-inf")
        self._found: KubeConfig | None = None

    async def __call__(self) -> KubeConfig | None:
        """Return what was read now or a moment ago; None if the hub does not answer."""
        async with self._reading:
            if time.monotonic() >= self._next_at:
                self._found = await self._ask()
                self._next_at = time.monotonic() + self._backoff.delay().total_seconds()
            return self._found

    async def _ask(self) -> KubeConfig | None:
        try:
            async with asyncio.timeout(ANSWERS_WITHIN.total_seconds()):
                return await self._read()
        except (KubeError, ConfigError, TimeoutError) as e:
            log.warning("access_data_not_read", error=str(e) or "the hub does not answer")
            return None


def _is_same(cached: Object, secret: Object) -> bool:
    now = mapping(secret, "metadata")
    version = now.get("resourceVersion")
    return bool(version) and (cached.get("uid"), cached.get("resourceVersion")) == (
        now.get("uid"),
        version,
    )


def read_kubeconfig(name: str, secret: Object, *, key: str = KUBECONFIG_KEY) -> Access:
    """The kubeconfig in a Secret, if it may be used; `checked` checks its address."""
    text, problem = read_text(name, secret, key)
    if problem:
        return None, problem
    return read_access(text, f"Secret {name}")


def read_member(name: str, secret: Object, *, key: str = KUBECONFIG_KEY) -> Access:
    """The kubeconfig in a Secret, if it and its address may be used."""
    return checked(read_kubeconfig(name, secret, key=key))


def read_access(text: str, source: str) -> Access:
    """The current context of an uploaded kubeconfig, or why it must not be used."""
    try:
        return read_upload(text, source), ""
    except ConfigError as e:
        return None, str(e)


def kubeconfig_of(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> str:
    """A kubeconfig with one context, of these fields of its cluster and its user."""
    document = {
        "current-context": "cluster",
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "user"}}],
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
    }
    return orjson.dumps(document).decode()


def checked(access: Access) -> Access:
    """The same access data, unless a member must not have that address (rule S7)."""
    config, _ = access
    if config is None:
        return access
    try:
        check_access(config)
    except ConfigError as e:
        return None, str(e)
    return access


def read_text(name: str, secret: Object, key: str) -> tuple[str, str]:
    """The string under a key of a Secret, or the reason why there is none."""
    encoded = string(secret, "data", key)
    if not encoded:
        return "", f"Secret {name} has no data key {key!r}"
    try:
        return base64.b64decode(encoded, validate=True).decode(), ""
    except UnicodeDecodeError:  # as a redirection in PowerShell writes it
        return "", f"Secret {name}: data key {key!r} is not text in UTF-8"
    except (binascii.Error, ValueError):  # bytes beyond ASCII, too
        return "", f"Secret {name}: data key {key!r} is not base64-encoded"
