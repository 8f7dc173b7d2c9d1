"""Provider `kubeconfig`: one cluster per context of kubeconfig files, followed for change.

A cluster is named after its context. If several contexts would get the same name, all of them also
get the name of their file: the order of files must not decide what a name means.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pathlib
import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Final

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.mirror import SkippedEntries
from fleetbus.clusters.providers.file_watch import watch_files
from fleetbus.clusters.providers.kubeconfig_files import KubeconfigFiles
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import (
    KubeConfig,
    check_access,
    expand_home,
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
"""The file names used in a directory, as in multicluster-runtime's file provider."""
_NONE_FITS: Final = f"no file in it is named {', '.join(GLOBS[:-1])} or {GLOBS[-1]}"
POLL: Final = timedelta(seconds=1)
FILE_LABEL: Final = "fleetbus.dev/file"
CONTEXT_LABEL: Final = "fleetbus.dev/context"
"""Labels of each cluster that show its origin, whatever its name is."""
_ENDING: Final = re.compile(r"(\.kubeconfig)?(\.ya?ml)?$")
_LONGEST: Final = 63

Place = tuple[pathlib.Path, str]
"""A file and the name of a context in it."""


class KubeconfigProvider:
    """Clusters from files and directories of kubeconfigs.

    Args:
        paths: files of any name, and directories, which are searched for `GLOBS`.
        only: the contexts to use; None uses all.
        every: how often the files are checked.
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
        self._kubeconfigs = KubeconfigFiles()
        # The contexts of each file when it was last readable.
        self._said: dict[pathlib.Path, list[KubeConfig]] = {}
        self._skipped = SkippedEntries(self.name)

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield the clusters of all files at each change of one of them."""
        async for _ in watch_files(self._files, self._every):
            yield await asyncio.to_thread(self._read)

    def _files(self) -> list[pathlib.Path]:
        paths: list[pathlib.Path] = []
        for path in self._paths:
            paths += sorted({f for glob in GLOBS for f in path.glob(glob)}) or [path]
        return [path for path in dict.fromkeys(paths) if not path.is_dir()]

    def _read(self) -> list[ClusterInfo]:
        reasons = {str(path): _NONE_FITS for path in self._paths if _is_passed_over(path)}
        configs: dict[Place, KubeConfig] = {}
        files = self._files()
        self._kubeconfigs.forget_all_but(files)
        for path in files:
            for config in self._read_file(path, reasons):
                configs[path, config.context] = config
        names, nameless = name_contexts(list(configs))
        for (path, context), reason in nameless.items():
            reasons[f"{path}: context {context!r}"] = reason
        for context in sorted((self._only or set()) - {context for _, context in configs}):
            reasons[f"context {context!r}"] = f"in none of {', '.join(map(str, self._paths))}"
        self._skipped.report(reasons)
        return [_info(name, place[0], configs[place]) for place, name in names.items()]

    def _read_file(self, path: pathlib.Path, reasons: dict[str, str]) -> list[KubeConfig]:
        try:
            parts = self._kubeconfigs.read(path).configs
        except ConfigError as e:
            reasons[str(path)] = str(e)
            if not path.exists():
                self._said.pop(path, None)
            # A file that is being written is unreadable for a moment: keep its last content.
            return self._said.get(path, [])
        self._said[path] = [p for n, p in parts.items() if self._only is None or n in self._only]
        return self._said[path]


def _is_passed_over(path: pathlib.Path) -> bool:
    """Whether it is a directory whose files all have other names."""
    try:
        names = [file.name for file in path.iterdir() if file.is_file()]
    except OSError:  # not a directory, or unreadable
        return False
    return bool(names) and not any(fnmatchcase(n, glob) for n in names for glob in GLOBS)


def _info(name: str, path: pathlib.Path, config: KubeConfig) -> ClusterInfo:
    problem = ""
    try:
        check_access(config)
    except ConfigError as e:  # one bad context is a problem of that cluster, not of the file
        problem = str(e)
    return ClusterInfo(
        name=name,
        labels={FILE_LABEL: str(path), CONTEXT_LABEL: config.context},
        provider="kubeconfig",
        config=None if problem else config,
        problem=problem,
    )


def name_contexts(places: Sequence[Place]) -> tuple[dict[Place, str], dict[Place, str]]:
    """Unique cluster names for contexts; also why others have none.

    The order of the contexts does not matter.
    """
    plain: dict[Place, str] = {}
    nameless: dict[Place, str] = {}
    for place in places:
        try:
            plain[place] = cluster_name(place[1])
        except InvalidName as e:
            nameless[place] = str(e)
    count = Counter(plain.values())
    ambiguous = [place for place, name in plain.items() if count[name] > 1]
    longer = {place: _with_file(place) for place in ambiguous}
    count.update(longer.values())
    for place, name in longer.items():
        is_free = count[name] == 1 and len(name) <= _LONGEST
        plain[place] = name if is_free else _with_hash(place, name)
    return plain, nameless


def _with_file(place: Place) -> str:
    path, context = place
    return "-".join(
        segment for segment in map(_dashed, (_ENDING.sub("", path.name), context)) if segment
    )


def _with_hash(place: Place, name: str) -> str:
    digest = hashlib.sha256("\0".join(map(str, place)).encode()).hexdigest()[:8]
    return f"{name[: _LONGEST - 9].strip('-')}-{digest}"


def cluster_name(context: str) -> str:
    """Convert a context's name to a cluster name: lower case, all other characters to dashes.

    Raises:
        InvalidName: no valid name is left.
    """
    return check_cluster(_dashed(context)[:_LONGEST].strip("-"))


def _dashed(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
