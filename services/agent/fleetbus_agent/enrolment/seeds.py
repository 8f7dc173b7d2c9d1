"""Where an agent keeps the seed of its nkey: a Secret in its own cluster, which never leaves it.

All processes of an agent, and those of its replicas, use the same seed. Each writes it to a file of
its pod, from which it logs in.
"""

from __future__ import annotations

import base64
import binascii
import os
import pathlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from fleetbus.agents.nkeys import public_key
from fleetbus.errors import ConfigError, CredentialsError
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.json_fields import mapping, string
from fleetbus_proto.resources import parse_resource

_SECRETS: Final = parse_resource("v1/secrets")
_FIELDS: Final = {
    "seed": "seed",
    "nextSeed": "next_seed",
    "oneTimeKey": "one_time",
    "since": "since",
    "registered": "registered",
    "confirmed": "confirmed",
    "clusterUID": "cluster_uid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """The data of the Secret; empty where there is nothing."""

    seed: str = ""
    """Logs in, once it is registered."""
    next_seed: str = ""
    """The seed of a rotation that has begun."""
    one_time: str = ""
    """The public one-time nkey with which `seed` was made to be registered."""
    since: str = ""
    """Since when `seed` is used, RFC 3339."""
    registered: str = ""
    """The public key of `seed`, once the hub has accepted it."""
    confirmed: str = ""
    """The public key of `seed`, once the hub has dropped the one before."""
    cluster_uid: str = ""
    """The UID of kube-system of the cluster in which `seed` was registered; a restored backup may
    have brought the Secret into another one."""
    version: str = ""
    """The resourceVersion that was read."""

    def __repr__(self) -> str:
        return f"Seeds(since={self.since!r}, version={self.version!r})"

    @property
    def is_registered(self) -> bool:
        """Whether the hub has accepted the seed."""
        return bool(self.seed) and self.registered == public_key(self.seed)

    @property
    def is_confirmed(self) -> bool:
        """Whether the hub has dropped the seed before."""
        return bool(self.seed) and self.confirmed == public_key(self.seed)


class SeedSecret:
    """The Secret; it exists, and may be empty.

    Args:
        client: of the member's API server, with the right to get and patch that Secret.
        secret: namespace/name.
    """

    def __init__(self, client: KubeClient, secret: str) -> None:
        self._client = client
        self._place = secret
        self._namespace, _, self._name = secret.partition("/")

    async def read(self) -> Seeds:
        """Read it.

        Raises:
            ConfigError: it is missing, or has something else than seeds.
            KubeError: it cannot be read.
        """
        secret = await self._client.get(_SECRETS, self._namespace, self._name)
        if secret is None:
            raise ConfigError(
                f"Secret {self._place} is missing: the chart fleetbus-agent makes it, empty"
            )
        data = mapping(secret, "data")
        fields = {field: self._text(data.get(key)) for key, field in _FIELDS.items()}
        seeds = Seeds(**fields, version=string(secret, "metadata", "resourceVersion"))
        for key, seed in (("seed", seeds.seed), ("nextSeed", seeds.next_seed)):
            self._check(key, seed)
        return seeds

    async def write(self, seeds: Seeds) -> Seeds:
        """Write them unless they have changed since they were read; returns them as stored.

        Raises:
            Conflict: somebody else was faster.
            KubeError: it cannot be written.
        """
        data = {
            key: base64.b64encode(str(getattr(seeds, field)).encode()).decode() or None
            for key, field in _FIELDS.items()
        }
        patch: Object = {"metadata": {"resourceVersion": seeds.version}, "data": data}
        stored = await self._client.patch(_SECRETS, self._namespace, self._name, patch)
        return replace(seeds, version=string(stored, "metadata", "resourceVersion"))

    def _text(self, value: object) -> str:
        try:
            return base64.b64decode(value, validate=True).decode() if isinstance(value, str) else ""
        except (binascii.Error, ValueError):
            raise ConfigError(f"Secret {self._place}: a value is not base64 of text") from None

    def _check(self, key: str, seed: str) -> None:
        try:
            if seed:
                public_key(seed)
        except CredentialsError as e:
            raise ConfigError(f"Secret {self._place}: {key}: {e}") from None


def write_seed(path: pathlib.Path, seed: str) -> None:
    """Write the seed to a file that only this user can read, at once as a whole.

    Raises:
        ConfigError: the file cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{seed}\n")
        new.replace(path)
    except OSError as e:
        raise ConfigError(f"{path}: cannot be written: {e.strerror or e}") from e


def age_of(seeds: Seeds, now: datetime) -> float:
    """For how many seconds the seed has been used; 0 if that is unknown."""
    try:
        return max((now - datetime.fromisoformat(seeds.since)).total_seconds(), 0)
    except (TypeError, ValueError):
        return 0
