"""Access data in Secrets of the hub: a kubeconfig, or what stands for one (rule S7)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final

from fleetbus.clusters.fields import map_of, text_of
from fleetbus.clusters.mirror import Objects
from fleetbus.errors import ConfigError
from fleetbus.kube.client import Object
from fleetbus.kube.config import KubeConfig, check_server, read_upload

KUBECONFIG_KEY: Final = "kubeconfig"

Access = tuple[KubeConfig | None, str]
"""Access data, or why there is none."""

Read = Callable[[str, Object], Access]
"""From what names a Secret in messages, and the Secret."""


class SecretReader:
    """What the Secrets hold; each is parsed once per version of it, not at each change of any."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[tuple[str, str], tuple[Object, Access]] = {}

    def read(self, place: tuple[str, str], secret: Object) -> Access:
        """The access data in the Secret at this place."""
        known = self._known.get(place)
        if known is not None and _is_same(known[0], secret):
            return known[1]
        access = self._read("/".join(place), secret)
        self._known[place] = (map_of(secret.get("metadata")), access)
        return access

    def forget_all_but(self, secrets: Objects) -> None:
        """Keep nothing of a Secret that is gone."""
        for place in self._known.keys() - secrets.keys():
            del self._known[place]


def _is_same(known: Object, secret: Object) -> bool:
    now = map_of(secret.get("metadata"))
    version = now.get("resourceVersion")
    return bool(version) and (known.get("uid"), known.get("resourceVersion")) == (
        now.get("uid"),
        version,
    )


def read_kubeconfig(said: str, secret: Object, *, key: str = KUBECONFIG_KEY) -> Access:
    """The kubeconfig under a key of a Secret, if it may be used; for its address see `checked`."""
    text, problem = read_text(said, secret, key)
    if problem:
        return None, problem
    return read_access(text, f"Secret {said}")


def read_member(said: str, secret: Object, *, key: str = KUBECONFIG_KEY) -> Access:
    """The kubeconfig under a key of a Secret, if it may be used and so may its address."""
    return checked(read_kubeconfig(said, secret, key=key))


def read_access(text: str, source: str) -> Access:
    """The current context of an uploaded kubeconfig, or why it must not be used."""
    try:
        return read_upload(text, source), ""
    except ConfigError as e:
        return None, str(e)


def checked(access: Access) -> Access:
    """The same access data, unless the address is one that a member must not have (rule S7)."""
    config, _ = access
    if config is None:
        return access
    try:
        check_server(config)
    except ConfigError as e:
        return None, str(e)
    return access


def read_text(said: str, secret: Object, key: str) -> tuple[str, str]:
    """The text under a key of a Secret, or why there is none."""
    encoded = text_of(map_of(secret.get("data")).get(key))
    if not encoded:
        return "", f"Secret {said} has no data key {key!r}"
    try:
        return base64.b64decode(encoded, validate=True).decode(), ""
    except (binascii.Error, ValueError):  # no base64, or not UTF-8
        return "", f"Secret {said}: data key {key!r} is not text"
