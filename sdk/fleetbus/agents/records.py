"""The record of a cluster's agent: a Secret on the hub that says which nkeys may log in.

`fleetbus join --agent` writes it, `fleetbus clusters accept` and the registrar change it, and
`fleetbus unjoin` deletes it. It has public keys only; it is a Secret because whoever may write it
decides who is trusted.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from fleetbus.agents.nkeys import is_public_key
from fleetbus.clusters.membership import AGENT_LABEL, JOINED_LABEL, agent_record_name
from fleetbus.errors import ConfigError
from fleetbus.kube.client import Object
from fleetbus.kube.json_fields import mapping, string
from fleetbus_proto.errors import InvalidName

_KEYS: Final = {
    "oneTimeKey": "one_time",
    "expires": "expires",
    "key": "key",
    "nextKey": "next_key",
    "pendingKey": "pending",
    "uid": "uid",
    "instance": "instance",
    "changed": "changed",
    "refused": "refused",
    "refusedAt": "refused_at",
}
"""Key of the Secret → field."""
_LONGEST: Final = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord:
    """Which nkeys of a cluster's agent count; public ones, empty where there is none."""

    cluster: str
    one_time: str = ""
    """May register until `expires`."""
    expires: str = ""
    """RFC 3339."""
    key: str = ""
    """May log in."""
    next_key: str = ""
    """Replaces `key` as soon as the agent says so; may log in, too."""
    pending: str = ""
    """Has registered, and may not log in before somebody accepts it."""
    uid: str = ""
    """UID of kube-system, as the agent has reported."""
    instance: str = ""
    """Name of the agent's process that registered, as it has reported."""
    changed: str = ""
    """When the agent last changed its nkeys, RFC 3339."""
    refused: str = ""
    """Why the hub refused the agent's last registration; empty if it did not."""
    refused_at: str = ""
    """When, RFC 3339."""

    @property
    def name(self) -> str:
        """The name of the Secret."""
        return agent_record_name(self.cluster)

    def may_register(self, now: datetime) -> bool:
        """Whether the one-time nkey still counts."""
        return bool(self.one_time) and now < read_time(self.expires)

    @property
    def end(self) -> datetime | None:
        """When the one-time nkey ends; None if there is none."""
        return read_time(self.expires) if self.one_time else None

    def accepted(self) -> AgentRecord:
        """The record once somebody has accepted the pending nkey."""
        return self.changed_to(key=self.pending, pending="", next_key="")

    def changed_to(self, **fields: str) -> AgentRecord:
        """The record with other nkeys; a refusal before them does not count any more."""
        return replace(self, refused="", refused_at="", **fields)

    def data(self) -> dict[str, str | None]:
        """The data of the Secret; None for a key that it does not have."""
        return {
            name: base64.b64encode(value.encode()).decode() if value else None
            for name, value in ((key, getattr(self, field)) for key, field in _KEYS.items())
        }


def record_secret(record: AgentRecord, namespace: str) -> Object:
    """The Secret of a record, to be created."""
    labels = {AGENT_LABEL: "true", JOINED_LABEL: record.cluster}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": record.name, "namespace": namespace, "labels": labels},
        "data": {name: value for name, value in record.data().items() if value is not None},
    }


def read_record(secret: Object) -> AgentRecord:
    """Read a record.

    Raises:
        ConfigError: it is none; the message names the Secret and the key.
    """
    place = "/".join(string(secret, "metadata", key) for key in ("namespace", "name"))
    cluster = string(secret, "metadata", "labels", JOINED_LABEL)
    try:
        name = agent_record_name(cluster)
    except InvalidName as e:
        raise ConfigError(f"Secret {place}: label {JOINED_LABEL}: {e}") from e
    if string(secret, "metadata", "name") != name:
        raise ConfigError(f"Secret {place}: the record of cluster {cluster!r} is named {name}")
    data = mapping(secret, "data")
    fields: dict[str, str] = {}
    for key, field in _KEYS.items():
        fields[field] = _value(place, key, data.get(key))
    for key in ("oneTimeKey", "key", "nextKey", "pendingKey"):
        if (value := fields[_KEYS[key]]) and not is_public_key(value):
            raise ConfigError(f"Secret {place}: {key} is not the public nkey of a user")
    for key in ("expires", "changed", "refusedAt"):
        if (text := fields[_KEYS[key]]) or (key == "expires" and fields["one_time"]):
            _check_time(place, key, text)
    return AgentRecord(cluster=cluster, **fields)


def _value(place: str, key: str, value: Any) -> str:
    if value is None:
        return ""
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, TypeError, ValueError):
        raise ConfigError(f"Secret {place}: {key} is not base64 of text") from None
    if len(text) > _LONGEST or not text.isprintable():
        raise ConfigError(f"Secret {place}: {key} is not a short text")
    return text


def _check_time(place: str, key: str, text: str) -> None:
    try:
        read_time(text)
    except ValueError:
        raise ConfigError(
            f"Secret {place}: {key} is not a time like 2026-01-31T12:00:00Z"
        ) from None


def read_time(text: str) -> datetime:
    """Read a time of a record.

    Raises:
        ValueError: it is none, or has no time zone.
    """
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("without a time zone")
    return time
