"""The watch spec in effect: the hub's, and the watcher's own settings where that says nothing.

The hub's spec is a key of the bucket (`fleetbus.watchers.spec`). It stays in effect until there is
another one: a key that is gone was lost with its bucket, and will be written again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

import structlog
from pydantic import ValidationError

from fleetbus.bus.key_value import KeyValue
from fleetbus.kube.discovery import Discovery
from fleetbus.watchers.spec import EMPTY_SPEC, SUSPENDED, read_spec
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import WatchSet
from fleetbus_watcher import metrics
from fleetbus_watcher.selection import NOT_FOUND, SelectionResult, select
from fleetbus_watcher.settings import ALL, Selection, WatcherSettings, check_denied

log = structlog.get_logger()

_LOOK: Final = timedelta(seconds=60)
"""A wake-up may be lost; the key is kept."""
_SHOWN: Final = 80
"""So many characters of an invalid entry are shown."""
_NAMED: Final = 8
"""So many entries of a setting are shown."""


class EffectiveSpec:
    """The resources to watch of one cluster now.

    Args:
        kv: the bucket.
        settings: used where the hub's spec says nothing.

    Attributes:
        invalid: invalid entries of the hub's spec, each with the reason.
        overridden: settings that the hub's spec replaces, each with both values.
        suspended: set while the hub's spec suspends the cluster.
    """

    def __init__(self, kv: KeyValue, settings: WatcherSettings) -> None:
        self._kv = kv
        self._settings = settings
        self._spec = EMPTY_SPEC
        self._selections: Sequence[Selection] = settings.resources
        self._deny: Sequence[str] = settings.deny
        self.suspended = asyncio.Event()
        self.invalid: list[str] = []
        self.overridden: list[str] = []

    async def read(self) -> bool:
        """Read the hub's spec; returns whether it has changed.

        Raises:
            BusError: it could not be read.
        """
        cluster = self._settings.cluster
        try:
            spec = await read_spec(self._kv, cluster)
        except MalformedMessage as e:
            log.warning("watch_spec_unreadable", cluster=cluster, error=str(e))
            return False
        if spec is None or spec == self._spec:
            return False
        self._spec, self.invalid = spec, []
        settings = self._settings
        self._selections = (
            self._read_selections(spec.resources) if spec.resources else settings.resources
        )
        self._deny = settings.deny if spec.deny is None else self._read_deny(spec.deny)
        self._report_overridden()
        log.info("watch_spec_read", cluster=cluster, suspended=spec.suspended)
        if spec.suspended:
            self.suspended.set()
        return True

    async def select(self, discovery: Discovery) -> SelectionResult:
        """Resolve what there is to watch; discovery must have been refreshed before.

        Raises:
            KubeError: discovery is not available.
        """
        selected = await select(
            discovery, self._selections, self._deny, secrets=self._settings.secrets
        )
        refused = len(selected.refused) + len(self.invalid)
        metrics.refused(self._settings.cluster).set(refused)
        if self.invalid:
            return selected  # an invalid entry may mean any resource, so the watch set is unknown
        served: list[str] | None = None
        if any(status.reason == NOT_FOUND for status in selected.refused):
            served = sorted(selected.served)
        is_all = any(selection.resource == ALL for selection in self._selections)
        deny = sorted(selected.denied) if is_all else []
        selected.watch_set = WatchSet(all=is_all, deny=deny, served=served)
        return selected

    async def wait_until_resumed(
        self, woken: asyncio.Event, report: Callable[[str, str], None]
    ) -> None:
        """Wait as long as the cluster is suspended.

        Args:
            woken: set when the spec may have changed.
            report: called with reason and message of the wait.

        Raises:
            BusError: the spec could not be read.
        """
        while True:
            woken.clear()
            await self.read()
            if not self._spec.suspended:
                self.suspended.clear()
                return
            report(SUSPENDED, "nothing is watched while it is suspended")
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK.total_seconds()):
                    await woken.wait()

    def _report_overridden(self) -> None:
        """Log which settings of this watcher have no effect, because the hub's spec replaces them.

        A setting that was left out, or says the same, is nothing to tell.
        """
        self.overridden = []
        settings = self._settings
        pairs = {
            "resources": (settings.resources, self._selections),
            "deny": (settings.deny, self._deny),
        }
        for field, (mine, used) in pairs.items():
            if field not in settings.model_fields_set or set(mine) == set(used):
                continue
            name = f"FLEETBUS_WATCHER_{field.upper()}"
            value, effective = _shown(mine), _shown(used)
            log.warning(
                "watch_setting_replaced",
                setting=name,
                value=value,
                replaced_by=f"spec.{field} of the Cluster {settings.cluster}, or of its provider",
                effective=effective,
            )
            self.overridden.append(f"{name} ({value}) by spec.{field} ({effective})")

    def _read_selections(self, entries: Sequence[Any]) -> tuple[Selection, ...]:
        selections: list[Selection] = []
        for entry in entries:
            try:
                selections.append(Selection.model_validate(entry))
            except ValidationError as e:
                first = e.errors()[0]
                where = "".join(f"{part}: " for part in first["loc"])
                self._refuse(_name_of(entry), where + first["msg"].removeprefix("Value error, "))
        return tuple(selections)

    def _read_deny(self, entries: Sequence[str]) -> tuple[str, ...]:
        keys: list[str] = []
        for entry in entries:
            try:
                keys.append(check_denied(entry))
            except ValueError as e:
                self._refuse(entry, str(e))
        return tuple(keys)

    def _refuse(self, name: str, reason: str) -> None:
        log.warning("watch_entry_invalid", cluster=self._settings.cluster, entry=name, error=reason)
        self.invalid.append(f"{name!r}: {reason}")


def _shown(entries: Sequence[Selection] | Sequence[str]) -> str:
    """The entries of a setting, with a mark where one is narrowed."""
    names = [
        entry
        if isinstance(entry, str)
        else entry.resource + ("" if entry == Selection(resource=entry.resource) else " (narrowed)")
        for entry in entries
    ]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (", ".join(names[:_NAMED]) or "none") + more


def _name_of(entry: object) -> str:
    if isinstance(entry, dict):
        entry = cast("dict[str, object]", entry).get("resource") or str(cast("object", entry))
    return str(entry)[:_SHOWN]
