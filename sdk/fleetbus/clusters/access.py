"""Access data in Secrets of the hub: a kubeconfig, or what stands for one (rule S7)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, cast

from fleetbus.clusters.mirror import Objects
from fleetbus.kube.client import Object
from fleetbus.kube.config import KubeConfig, distrust

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
        self._known[place] = (secret["metadata"], access)
        return access

    def forget_all_but(self, secrets: Objects) -> None:
        """Keep nothing of a Secret that is gone."""
        for place in self._known.keys() - secrets.keys():
            del self._known[place]


def _is_same(known: Object, secret: Object) -> bool:
    now = cast("Object", secret["metadata"])
    version = now.get("resourceVersion")
    return bool(version) and (known.get("uid"), known.get("resourceVersion")) == (
        now.get("uid"),
        version,
    )


def read_kubeconfig(said: str, secret: Object, *, key: str = KUBECONFIG_KEY) -> Access:
    """The kubeconfig under a key of a Secret, if it may be trusted."""
    text, problem = read_text(said, secret, key)
    if problem:
        return None, problem
    config = KubeConfig(text, source=f"Secret {said}")
    problem = distrust(config)
    return (None, problem) if problem else (config, "")


def read_text(said: str, secret: Object, key: str) -> tuple[str, str]:
    """The text under a key of a Secret, or why there is none."""
    encoded = cast("dict[str, str]", secret.get("data") or {}).get(key)
    if not encoded:
        return "", f"Secret {said} has no data key {key!r}"
    try:
        return base64.b64decode(encoded, validate=True).decode(), ""
    except (binascii.Error, UnicodeDecodeError):
        return "", f"Secret {said}: data key {key!r} is not text"
