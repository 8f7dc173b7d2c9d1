"""Provider `kubeconfig`: one cluster per context of kubeconfig files, followed for change."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.clusters.file_watch import watch_files
from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import ConfigError
from fleetbus.kube_config import (
    KubeConfig,
    by_context,
    expand_home,
    read_kube_config,
    server_of,
)
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster

GLOBS: Final = (
    "kubeconfig.yaml",
    "kubeconfig.yml",
    "*.kubeconfig",
    "*.kubeconfig.yaml",
    "*.kubeconfig.yml",
)
"""What is taken from a directory, as multicluster-runtime's file provider does."""
POLL: Final = timedelta(seconds=1)

log = structlog.get_logger()


class KubeconfigProvider:
    """Clusters from files and directories of kubeconfigs.

    Args:
        paths: files, taken whatever their name, and directories, searched for `GLOBS`.
        only: context names to take; None takes all.
        every: how often the files are looked at.
    """

    name = "kubeconfig"

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        only: Sequence[str] | None = None,
        every: timedelta = POLL,
    ) -> None:
        self._paths = [expand_home(path) for path in paths]
        self._only = set(only) if only is not None else None
        self._every = every
        # What each file said when it could last be read.
        self._said: dict[pathlib.Path, list[ClusterInfo]] = {}

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield the clusters of all files at each change of one of them."""
        async for _ in watch_files(self._files, self._every):
            yield await asyncio.to_thread(self._read)

    def _files(self) -> list[pathlib.Path]:
        found: list[pathlib.Path] = []
        for path in self._paths:
            found += sorted({f for glob in GLOBS for f in path.glob(glob)}) or [path]
        return [path for path in found if not path.is_dir()]

    def _read(self) -> list[ClusterInfo]:
        found: dict[str, ClusterInfo] = {}
        for path in self._files():
            for info in self._read_file(path):
                first = found.setdefault(info.name, info)
                if first is not info:
                    log.warning("cluster_name_taken", cluster=info.name, source=str(path))
        self._tell_missing(found.values())
        return list(found.values())

    def _tell_missing(self, found: Iterable[ClusterInfo]) -> None:
        seen = {info.config.context for info in found if info.config is not None}
        for context in sorted((self._only or set()) - seen):
            log.warning("context_missing", context=context, paths=[str(p) for p in self._paths])

    def _read_file(self, path: pathlib.Path) -> list[ClusterInfo]:
        try:
            parts = by_context(read_kube_config(path))
        except ConfigError as e:
            # A file that is being written is unreadable for a moment: what it said stays true.
            log.warning("kubeconfig_unreadable", error=str(e))
            return self._said.get(path, [])
        wanted = [part for n, part in parts.items() if self._only is None or n in self._only]
        infos = [_info(part) for part in wanted]
        self._said[path] = [info for info in infos if info is not None]
        return self._said[path]


def _info(config: KubeConfig) -> ClusterInfo | None:
    try:
        name = cluster_name(config.context)
    except InvalidName as e:
        log.warning("cluster_skipped", source=config.source, context=config.context, error=str(e))
        return None
    try:
        server_of(config)
    except ConfigError as e:  # one dead context is a condition of that cluster, not of the file
        return ClusterInfo(name=name, provider="kubeconfig", config=None, problem=str(e))
    return ClusterInfo(name=name, provider="kubeconfig", config=config)


def cluster_name(context: str) -> str:
    """A context's name as a cluster name: lower case, everything else a dash.

    Raises:
        InvalidName: nothing usable is left.
    """
    return check_cluster(re.sub(r"[^a-z0-9]+", "-", context.lower())[:63].strip("-"))
