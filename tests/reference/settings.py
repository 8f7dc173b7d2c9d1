"""The environment variables of all components, from their pydantic models."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python
from pydantic_settings import BaseSettings

from fleetbus.process.settings import SharedSettings
from fleetbus_agent.settings import AgentSettings
from fleetbus_archiver.settings import ArchiverSettings
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_query_api.settings import QueryApiSettings
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_watcher.settings import PoolSettings, WatcherSettings
from reference.tables import code, table

_OF: Final[dict[str, type[BaseSettings]]] = {
    "Every component": SharedSettings,
    "Watcher": WatcherSettings,
    "Watcher pool": PoolSettings,
    "Reconciler": ReconcilerSettings,
    "Distributor": DistributorSettings,
    "Query API": QueryApiSettings,
    "Archiver": ArchiverSettings,
    "Agent": AgentSettings,
}
_UNITS: Final = ((3600, "h"), (60, "m"), (1, "s"))


def page() -> str:
    """Write the page."""
    parts = [
        "# Settings\n",
        "Every component reads its settings from environment variables, once, when it starts.",
        (
            "A value that is wrong ends the process with status 2 and a message that names the"
            " variable; a variable that looks like a setting and is none is logged."
        ),
        "Durations are written as `250ms`, `30s`, `5m` or `1h`; lists and objects as JSON.\n",
    ]
    for component, kind in _OF.items():
        parts += [f"## {component}\n", table(("variable", "default", "what it does"), _rows(kind))]
    return "\n".join(parts)


def _rows(kind: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    prefix = str(kind.model_config.get("env_prefix", ""))
    for name, field in kind.model_fields.items():
        yield code(f"{prefix}{name}".upper()), _default(field), field.description or ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value == socket.gethostname():
        return "the host's name"
    return code(_text(value))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    return json.dumps(to_jsonable_python(value)) if value else ""


def _duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    for size, unit in _UNITS:
        if seconds and not seconds % size:
            return f"{seconds / size:g}{unit}"
    return f"{seconds * 1000:g}ms" if seconds else "0s"
