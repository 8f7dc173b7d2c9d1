"""Provider `file`: clusters in a YAML file, also in multi_resource_operator's form.

clusters:
- name: eu1
  kubeconfig: eu1.kubeconfig     # relative to this file
  context: admin                 # default: the kubeconfig's current context
  labels: {region: eu}
  hub: true                      # at most one
  insecure: false                # true: the certificate is not verified
  http: false                    # true: plain http is allowed, which it otherwise never is
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
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, cast

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.mirror import SkippedEntries
from fleetbus.clusters.providers.file_watch import watch_files
from fleetbus.clusters.providers.kubeconfig import POLL
from fleetbus.clusters.providers.kubeconfig_files import KubeconfigFiles
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import KubeConfig, check_access, expand_home
from fleetbus.kube.connection.yaml_document import parse_yaml
from fleetbus.kube.json_fields import mapping, string
from fleetbus.process.file_errors import file_problem
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster

log = structlog.get_logger()


def _check_resource(entry: object) -> object:
    """Check the type of an entry; the watcher reports one that matches no resource."""
    if not isinstance(entry, str | dict):
        raise ValueError("Input should be a string or a map")  # noqa: TRY004 -- pydantic's way
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
    http: bool = False
    resources: list[Annotated[Any, AfterValidator(_check_resource)]] = Field(
        default_factory=list[Any]
    )
    deny: list[str] | None = None
    suspend: bool = False


class _OperatorResource(BaseModel):
    rType: str  # noqa: N815 -- multi_resource_operator's spelling


class _OperatorMetadata(BaseModel):
    """The metadata of an entry in multi_resource_operator's form."""

    clusterName: Annotated[str, AfterValidator(check_cluster)]  # noqa: N815
    configPath: str  # noqa: N815
    insecure: bool = False
    isMaster: bool = False  # noqa: N815
    resources: list[_OperatorResource] = Field(default_factory=list[_OperatorResource])

    def to_entry(self) -> _Entry:
        """The same cluster in our own form."""
        return _Entry(
            name=self.clusterName,
            kubeconfig=self.configPath,
            insecure=self.insecure,
            hub=self.isMaster,
            resources=[resource.rType for resource in self.resources],
        )


class _OperatorEntry(BaseModel):
    metadata: _OperatorMetadata


@dataclass(frozen=True, slots=True)
class _Broken:
    """An unusable entry; without a valid name it is skipped."""

    place: str
    name: str
    problem: str


class FileProvider:
    """Clusters from one YAML file, which is polled for changes.

    Args:
        path: the file; it is read on construction, so that an invalid one fails at startup.
        every: how often the file is checked.

    Raises:
        ConfigError: the file is not a list of clusters.
    """

    name = "file"

    def __init__(self, path: str | os.PathLike[str], *, every: timedelta = POLL) -> None:
        self._path = expand_home(path)
        self._every = every
        self._kubeconfigs = KubeconfigFiles()
        self._skipped = SkippedEntries(self.name)
        self._entries = _read_entries(self._path)

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield the clusters of the file at each change of it or of one of its kubeconfigs."""
        async for _ in watch_files(self._files, self._every):
            yield await asyncio.to_thread(self._read)

    def _read(self) -> list[ClusterInfo]:
        try:
            self._entries = _read_entries(self._path)
        except ConfigError as e:
            # A file that is being written is invalid for a moment: keep its last content.
            log.warning("clusters_file_unreadable", error=str(e))
        self._kubeconfigs.forget_all_but(self._files())
        self._skipped.report({e.place: e.problem for e in self._entries if isinstance(e, _Broken)})
        return _infos(self._path, self._entries, self._kubeconfigs)

    def _files(self) -> list[pathlib.Path]:
        # Including missing ones: a file that appears repairs its cluster.
        named = [e.kubeconfig for e in self._entries if isinstance(e, _Entry)]
        return [self._path, *(_beside(self._path, kubeconfig) for kubeconfig in named)]


def read_clusters(path: pathlib.Path) -> list[ClusterInfo]:
    """Read a clusters file.

    Raises:
        ConfigError: the file is not a list of clusters.
    """
    return _infos(path, _read_entries(path), KubeconfigFiles())


def _infos(
    path: pathlib.Path, entries: Sequence[_Entry | _Broken], kubeconfigs: KubeconfigFiles
) -> list[ClusterInfo]:
    return [
        _info(path, entry, kubeconfigs) if isinstance(entry, _Entry) else _broken_info(entry)
        for entry in entries
        if entry.name
    ]


def _read_entries(path: pathlib.Path) -> list[_Entry | _Broken]:
    """The entries by name; a problem with one affects only that entry (rule S7)."""
    parsed = [_entry(path, number, raw) for number, raw in enumerate(_raw_entries(path))]
    names = Counter(entry.name for entry in parsed)
    hubs = sum(isinstance(entry, _Entry) and entry.hub for entry in parsed)
    entries: dict[str, _Entry | _Broken] = {}
    for number, entry in enumerate(parsed):
        problem = ""
        if entry.name and names[entry.name] > 1:
            # It is unclear which one is meant, so none is used.
            problem = f"cluster {entry.name} is listed twice"
        elif isinstance(entry, _Entry) and entry.hub and hubs > 1:
            problem = "more than one cluster is the hub (hub or isMaster)"
        place = f"{path}: clusters.{number}"
        entries[entry.name or place] = (
            _Broken(place, entry.name, f"{path}: {problem}") if problem else entry
        )
    return list(entries.values())


def _raw_entries(path: pathlib.Path) -> list[Any]:
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"), aliases=True)
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: cannot be read: {file_problem(e)}") from e
    except ValueError as e:
        raise ConfigError(f"{path}: {e}") from e
    document = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    clusters: object = document.get("clusters")
    if not isinstance(clusters, list):
        raise ConfigError(f"{path}: field 'clusters' is missing or not a list")
    return cast("list[Any]", clusters)


def _entry(path: pathlib.Path, number: int, raw: object) -> _Entry | _Broken:
    fields = mapping(raw)
    try:
        if "metadata" in fields:
            return _OperatorEntry.model_validate(raw).metadata.to_entry()
        return _Entry.model_validate(raw)
    except ValidationError as e:
        first = e.errors()[0]
        field = ".".join(str(step) for step in ("clusters", number, *first["loc"]))
        name = fields.get("name") or mapping(fields, "metadata").get("clusterName")
        problem = f"{path}: {field}: {first['msg']}"
        return _Broken(f"{path}: clusters.{number}", _usable_name(name), problem)


def _usable_name(name: object) -> str:
    try:
        return check_cluster(string(name))
    except InvalidName:
        return ""


def _beside(path: pathlib.Path, kubeconfig: str) -> pathlib.Path:
    return path.parent / expand_home(kubeconfig)


def _config_of(path: pathlib.Path, entry: _Entry, kubeconfigs: KubeconfigFiles) -> KubeConfig:
    """The part of the kubeconfig that this cluster needs."""
    file = _beside(path, entry.kubeconfig)
    contexts = kubeconfigs.read(file)
    context = entry.context or contexts.current
    if not context:
        raise ConfigError(f"{file}: it has no current-context, and no context was given")
    if context not in contexts.configs:
        names = ", ".join(contexts.configs) or "none"
        raise ConfigError(f"{file}: context {context!r} is not one of {names}")
    config = replace(contexts.configs[context], insecure=entry.insecure, http=entry.http)
    check_access(config)
    return config


def _info(path: pathlib.Path, entry: _Entry, kubeconfigs: KubeconfigFiles) -> ClusterInfo:
    config, problem = None, ""
    try:
        config = _config_of(path, entry, kubeconfigs)
    except ConfigError as e:
        problem = str(e)  # one bad entry is a problem of that cluster only
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


def _broken_info(entry: _Broken) -> ClusterInfo:
    return ClusterInfo(name=entry.name, provider="file", config=None, problem=entry.problem)
