"""The user's kubeconfig files, each parsed once per content."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleetbus.kube.connection.config import (
    KubeConfig,
    by_context,
    current_context,
    load_kube_config,
)


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of one file, each with only its own part of the file."""

    configs: dict[str, KubeConfig]
    current: str


class KubeconfigFiles:
    """Reads kubeconfig files; parsing is expensive, so an unchanged file is not parsed again."""

    def __init__(self) -> None:
        self._known: dict[pathlib.Path, tuple[KubeConfig, Contexts]] = {}

    def read(self, path: pathlib.Path) -> Contexts:
        """The contexts of a file.

        Raises:
            ConfigError: it cannot be read, or is not a kubeconfig.
        """
        # Plain http needs an explicit field, which a kubeconfig does not have.
        config = replace(load_kube_config(path), http=False)
        cached = self._known.get(path)
        if cached is not None and cached[0] == config:
            return cached[1]
        contexts = Contexts(by_context(config), current_context(config))
        self._known[path] = config, contexts
        return contexts

    def forget_all_but(self, paths: Iterable[pathlib.Path]) -> None:
        """Forget files that are no longer read."""
        remaining = set(paths)
        self._known = {path: cached for path, cached in self._known.items() if path in remaining}
