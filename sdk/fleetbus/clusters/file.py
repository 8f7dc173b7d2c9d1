"""Provider `file`: a static list of clusters in a YAML file; the seed's spelling is read too.

clusters:
- name: eu1
  kubeconfig: eu1.kubeconfig     # relative to this file
  context: admin                 # default: the kubeconfig's current context
  labels: {region: eu}
  hub: true                      # at most one
  resources: [v1/pods, {resource: configmaps, namespaces: [prod]}]
  deny: [core/events]            # what "*" leaves out
- metadata:                      # multi_resource_operator's form
    clusterName: us1
    configPath: us1.yaml
    insecure: true
    isMaster: false
    resources: [{rType: core.v1.pods}]
"""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, cast

import structlog
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fleetbus.clusters.file_watch import watch_files
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.kubeconfig import POLL
from fleetbus.errors import ConfigError
from fleetbus.kube.config import (
    KubeConfig,
    by_context,
    current_context,
    expand_home,
    read_kube_config,
    server_of,
)
from fleetbus_proto.subjects import check_cluster

log = structlog.get_logger()


def _check_resource(entry: object) -> object:
    """Its form; whether it means anything is told by the watcher, and harms no other entry."""
    if not isinstance(entry, str | dict):
        raise ValueError("Input should be a text or a map")  # noqa: TRY004 -- pydantic's way
    return cast("object", entry)


class _Entry(BaseModel):
    """One cluster of the file."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, AfterValidator(check_cluster)]
    kubeconfig: str
    context: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    hub: bool = False
    insecure: bool = False
    resources: list[Annotated[Any, AfterValidator(_check_resource)]] = Field(
        default_factory=list[Any]
    )
    deny: list[str] | None = None
    suspend: bool = False


class _SeedResource(BaseModel):
    rType: str  # noqa: N815 -- the seed's spelling


class _SeedMetadata(BaseModel):
    """An entry of multi_resource_operator (COMPAT section 3)."""

    clusterName: Annotated[str, AfterValidator(check_cluster)]  # noqa: N815
    configPath: str  # noqa: N815
    insecure: bool = False
    isMaster: bool = False  # noqa: N815
    resources: list[_SeedResource] = Field(default_factory=list[_SeedResource])

    def modern(self) -> _Entry:
        """The same cluster in our spelling."""
        return _Entry(
            name=self.clusterName,
            kubeconfig=self.configPath,
            insecure=self.insecure,
            hub=self.isMaster,
            resources=[resource.rType for resource in self.resources],
        )


class _SeedEntry(BaseModel):
    metadata: _SeedMetadata


class FileProvider:
    """Clusters from one YAML file, followed for change.

    Args:
        path: the file; it is read once at construction, so that a wrong one stops the start.
        every: how often the file is looked at.

    Raises:
        ConfigError: the file is not a valid list of clusters.
    """

    name = "file"

    def __init__(self, path: str | os.PathLike[str], *, every: timedelta = POLL) -> None:
        self._path = expand_home(path)
        self._every = every
        self._entries = _read_entries(self._path)

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield the clusters of the file at each change of it or of a kubeconfig it names."""
        async for _ in watch_files(self._files, self._every):
            try:
                self._entries = await asyncio.to_thread(_read_entries, self._path)
            except ConfigError as e:
                # A file that is being written is wrong for a moment: what it said stays true.
                log.warning("clusters_file_unreadable", error=str(e))
            yield await asyncio.to_thread(_infos, self._path, self._entries)

    def _files(self) -> list[pathlib.Path]:
        # Also those that are missing: one that appears repairs its cluster.
        return [self._path, *(_kubeconfig_of(self._path, entry) for entry in self._entries)]


def read_clusters(path: pathlib.Path) -> list[ClusterInfo]:
    """Read a clusters file.

    Raises:
        ConfigError: the file or one entry is wrong; the message names file and field.
    """
    return _infos(path, _read_entries(path))


def _infos(path: pathlib.Path, entries: Sequence[_Entry]) -> list[ClusterInfo]:
    return [_info(path, entry) for entry in entries]


def _read_entries(path: pathlib.Path) -> list[_Entry]:
    entries = [_entry(path, number, raw) for number, raw in enumerate(_raw_entries(path))]
    names = [entry.name for entry in entries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{path}: cluster {', '.join(sorted(twice))} stands there twice")
    if sum(entry.hub for entry in entries) > 1:
        raise ConfigError(f"{path}: more than one cluster is the hub (hub or isMaster)")
    return entries


def _raw_entries(path: pathlib.Path) -> list[Any]:
    try:
        found: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from e
    except yaml.YAMLError as e:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(e).split())}") from e
    except (ValueError, RecursionError) as e:  # not UTF-8, a date that is none
        raise ConfigError(f"{path}: not valid YAML: {e}") from e
    document = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    clusters: object = document.get("clusters")
    if not isinstance(clusters, list):
        raise ConfigError(f"{path}: field 'clusters' is missing or not a list")
    return cast("list[Any]", clusters)


def _entry(path: pathlib.Path, number: int, raw: object) -> _Entry:
    try:
        if isinstance(raw, dict) and "metadata" in raw:
            return _SeedEntry.model_validate(raw).metadata.modern()
        return _Entry.model_validate(raw)
    except ValidationError as e:
        first = e.errors()[0]
        field = ".".join(str(part) for part in ("clusters", number, *first["loc"]))
        raise ConfigError(f"{path}: {field}: {first['msg']}") from e


def _kubeconfig_of(path: pathlib.Path, entry: _Entry) -> pathlib.Path:
    return path.parent / expand_home(entry.kubeconfig)


def _config_of(path: pathlib.Path, entry: _Entry) -> KubeConfig:
    """The part of the kubeconfig that this cluster needs."""
    read = read_kube_config(path, entry.context)
    server_of(read)  # says what is missing
    part = by_context(read)[current_context(read)]
    return replace(part, insecure=entry.insecure)


def _info(path: pathlib.Path, entry: _Entry) -> ClusterInfo:
    config, problem = None, ""
    try:
        config = _config_of(_kubeconfig_of(path, entry), entry)
    except ConfigError as e:
        problem = str(e)  # one dead entry is a condition of that cluster, not an end of all
    return ClusterInfo(
        name=entry.name,
        labels=entry.labels,
        hub=entry.hub,
        provider="file",
        config=config,
        problem=problem,
        resources=tuple(entry.resources),
        deny=tuple(entry.deny) if entry.deny is not None else None,
        suspended=entry.suspend,
    )
