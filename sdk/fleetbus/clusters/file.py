"""Provider `file`: a static list of clusters in a YAML file; the seed's spelling is read too.

clusters:
- name: eu1
kubeconfig: eu1.kubeconfig     # relative to this file
context: admin                 # default: the kubeconfig's current context
labels: {region: eu}
hub: true                      # at most one
resources: [v1/pods, apps/v1/deployments]
- metadata: {clusterName: us1, configPath: us1.yaml, insecure: true, isMaster: false,
resources: [{rType: core.v1.pods}]}       # multi_resource_operator's form
"""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Annotated, Any, cast

import structlog
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fleetbus.clusters.file_watch import watch_files
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.kubeconfig import POLL
from fleetbus.errors import ConfigError
from fleetbus.kube_config import KubeConfig, read_kube_config
from fleetbus_proto.subjects import check_cluster

log = structlog.get_logger()


class _Entry(BaseModel):
    """One cluster of the file."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, AfterValidator(check_cluster)]
    kubeconfig: str
    context: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    hub: bool = False
    insecure: bool = False
    resources: list[str] = Field(default_factory=list)
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
        self._path = pathlib.Path(path).expanduser()
        self._every = every
        self._last = read_clusters(self._path)

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield the clusters of the file at each change of it or of a kubeconfig it names."""
        async for _ in watch_files(self._files, self._every):
            try:
                self._last = await asyncio.to_thread(read_clusters, self._path)
            except ConfigError as e:
                log.warning("clusters_file_unreadable", error=str(e))
                continue
            yield self._last

    def _files(self) -> list[pathlib.Path]:
        sources = [info.config.source for info in self._last if info.config is not None]
        return [self._path, *map(pathlib.Path, sources)]


def read_clusters(path: pathlib.Path) -> list[ClusterInfo]:
    """Read a clusters file.

    Raises:
        ConfigError: the file or one entry is wrong; the message names file and field.
    """
    entries = [_entry(path, number, raw) for number, raw in enumerate(_raw_entries(path))]
    names = [entry.name for entry in entries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{path}: cluster {', '.join(sorted(twice))} stands there twice")
    if sum(entry.hub for entry in entries) > 1:
        raise ConfigError(f"{path}: more than one cluster is the hub (hub or isMaster)")
    return [_info(path, entry) for entry in entries]


def _raw_entries(path: pathlib.Path) -> list[Any]:
    try:
        found: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigError(f"{path}: cannot be read: {e}") from e
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


def _info(path: pathlib.Path, entry: _Entry) -> ClusterInfo:
    config, problem = None, ""
    try:
        read = read_kube_config(path.parent / entry.kubeconfig, entry.context)
        config = KubeConfig(read.document, entry.context, read.source, entry.insecure)
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
        suspended=entry.suspend,
    )
