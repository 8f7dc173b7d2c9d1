"""The names and printer columns of the watched resources that the hub does not know itself.

Names come from discovery. Columns and the kind of lists come from CustomResourceDefinitions. These
are large: their metadata is listed, and only one whose generation has changed is read, alone. Where
the watcher may not list them, tables show only the age, and a list is a `<Kind>List`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Final, NamedTuple, NoReturn

import msgspec
import structlog

from fleetbus.errors import Forbidden, KubeError
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.kube.list_watch.listing import JSON, METADATA, WatchTarget, list_pages
from fleetbus.kube.resource_names import names_of
from fleetbus_proto.events import PrinterColumn, ServedType
from fleetbus_proto.resources import Resource, is_built_in
from fleetbus_watcher.errors import WatcherError
from fleetbus_watcher.follow.context import CRDS, ClusterContext
from fleetbus_watcher.selection import SelectionResult

log = structlog.get_logger()

_PAGE: Final = 50
"""CRDs per page: their metadata may contain a copy of the whole definition."""
"""Between two looks at the definitions while the same resources are watched."""
_COLUMNS: Final = 32
_PATH: Final = 512
_WORD: Final = 64
_BUDGET: Final = 128 * 1024
"""Bytes of all types together, in a heartbeat; a hostile cluster may have any number."""


class _Metadata(msgspec.Struct):
    name: str
    generation: int = 0


class _Named(msgspec.Struct):
    metadata: _Metadata


class _Column(msgspec.Struct, rename="camel"):
    name: str
    type: str
    json_path: str
    format: str = ""
    priority: int = 0


class _Version(msgspec.Struct, rename="camel"):
    name: str
    additional_printer_columns: list[_Column] | None = None


class _Names(msgspec.Struct, frozen=True, rename="camel"):
    list_kind: str = ""


class _Spec(msgspec.Struct):
    versions: list[_Version]
    names: _Names = _Names()


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    accepted_names: _Names = _Names()


class _Definition(msgspec.Struct):
    spec: _Spec
    status: _Status = _Status()


class Defined(NamedTuple):
    """The part of a definition that is reported.

    Attributes:
        list_kind: the kind of its lists.
        is_accepted: whether the API server serves the names that the definition asks for.
    """

    columns: Sequence[PrinterColumn] = ()
    list_kind: str = ""
    is_accepted: bool = True


_named = msgspec.json.Decoder(_Named)
_definition = msgspec.json.Decoder(_Definition)


class ServedTypes:
    """The types of one cluster, for heartbeats.

    Args:
        context: of the cluster.
    """

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._log = log.bind(cluster=context.settings.cluster)
        self._watched: dict[str, ApiResource] = {}
        self._observed = asyncio.Event()
        self._defined: dict[str, Defined] = {}
        # By the name of a CRD: the generation and the version that were read.
        self._read: dict[str, tuple[int, str]] = {}
        self._is_refused = False
        self.known: list[ServedType] | None = None
        """None until the definitions were looked at."""

    def observe(self, selected: SelectionResult) -> None:
        """Take note of a selection."""
        watched = {
            each.api.resource.key: each.api
            for each in selected.resources.values()
            if not _is_in_every_cluster(each.api.resource)
        }
        if watched != self._watched or self.known is None:
            self._watched = watched
            self._observed.set()

    async def run(self) -> NoReturn:
        """Look at the definitions until cancelled; no failure of the server ends it."""
        interval = self._context.timing.definitions.total_seconds()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._observed.wait()
            self._observed.clear()
            watched = self._watched
            if watched:
                try:
                    await self._look(watched)
                    self._is_refused = False
                except Forbidden as e:
                    if not self._is_refused:  # no fault: only some watchers have the right
                        self._log.info("definitions_unreadable", error=str(e))
                    self._is_refused = True
                except (KubeError, WatcherError, OSError, ValueError) as e:
                    self._log.warning("definitions_unreadable", error=str(e))
            self._publish(watched)

    async def _look(self, watched: Mapping[str, ApiResource]) -> None:
        """Read the definitions that have changed."""
        by_name = {f"{a.resource.plural}.{a.resource.group}": key for key, a in watched.items()}
        context = self._context
        async with context.lists:
            generations = await self._generations(by_name)
            for name in self._read.keys() - generations.keys():
                del self._read[name]
                self._defined.pop(by_name.get(name, ""), None)
            for name, generation in generations.items():
                version = (generation, watched[by_name[name]].resource.version)
                if self._read.get(name) != version:
                    defined = await self._definition_of(name, version[1])
                    self._defined[by_name[name]] = defined
                    if defined.is_accepted:  # else the status changes, and no generation tells
                        self._read[name] = version

    async def _generations(self, names: Iterable[str]) -> dict[str, int]:
        searched, generations = set(names), dict[str, int]()
        pages = list_pages(
            self._context.client,
            WatchTarget(CRDS),
            limit=_PAGE,
            idle_timeout=self._context.settings.silence,
            accept=METADATA,
        )
        async with aclosing(pages):
            async for page in pages:
                for item in page.items:
                    with suppress(msgspec.MsgspecError):
                        metadata = _named.decode(item).metadata
                        if metadata.name in searched:
                            generations[metadata.name] = metadata.generation
        return generations

    async def _definition_of(self, name: str, version: str) -> Defined:
        pages = list_pages(
            self._context.client,
            WatchTarget(CRDS, field_selector=f"metadata.name={name}"),
            limit=1,
            idle_timeout=self._context.settings.silence,
            accept=JSON,
        )
        defined = Defined()
        async with aclosing(pages):
            async for page in pages:
                for item in page.items:
                    with suppress(msgspec.MsgspecError):
                        defined = read_definition(item, version)
        return defined

    def _publish(self, watched: Mapping[str, ApiResource]) -> None:
        types: list[ServedType] = []
        left = _BUDGET
        for key, api in sorted(watched.items()):
            defined = self._defined.get(key, Defined())
            is_usual = defined.list_kind == f"{api.kind}List"
            served = ServedType(
                group=api.resource.group,
                resource=api.resource.plural,
                singular=api.singular[:_WORD],
                short_names=[name[:_WORD] for name in api.short_names[:_COLUMNS]],
                categories=[name[:_WORD] for name in api.categories[:_COLUMNS]],
                list_kind="" if is_usual else defined.list_kind[:_WORD],
                columns=list(defined.columns),
            )
            size = len(msgspec.msgpack.encode(served))
            if size <= left:
                left -= size
                types.append(served)
        if self.known != types:
            self.known = types
            self._context.changed.set()


def _is_in_every_cluster(resource: Resource) -> bool:
    """Whether a type has no definition, and names that the hub knows; our own types have both."""
    return is_built_in(resource.group) and bool(names_of(resource.key))


def read_definition(body: bytes, version: str) -> Defined:
    """Read the part of a CustomResourceDefinition that is reported.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    definition = _definition.decode(body)
    list_kind = definition.spec.names.list_kind
    accepted = definition.status.accepted_names.list_kind
    return Defined(_columns(definition, version), accepted or list_kind, accepted == list_kind)


def _columns(definition: _Definition, version: str) -> list[PrinterColumn]:
    for served in definition.spec.versions:
        if served.name == version:
            return [
                PrinterColumn(
                    name=column.name[:_WORD],
                    type=column.type[:_WORD],
                    json_path=column.json_path,
                    format=column.format[:_WORD],
                    priority=column.priority,
                )
                for column in (served.additional_printer_columns or [])[:_COLUMNS]
                if len(column.json_path) <= _PATH
            ]
    return []
