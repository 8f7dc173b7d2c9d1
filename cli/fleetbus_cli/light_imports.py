"""Spares commands imports of the libraries that no command has a use for.

A person waits for each, a tenth of a second of CPU: for rich, which structlog imports for
tracebacks, and for aiohttp, which nats-py imports for websockets. Both count as not installed while
the library that asks for them is imported; the first websocket imports aiohttp.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def spare_imports() -> None:
    """Leave them out from now on, in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        load = _LOADS.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if load is not None else None
        if load is not None and spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, load)
        return spec


class _Loader(Loader):
    def __init__(self, plain: Loader, load: Callable[[Loader, ModuleType], None]) -> None:
        self._plain = plain
        self._load = load

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._plain.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._load(self._plain, module)


def _load_structlog(plain: Loader, module: ModuleType) -> None:
    _load_without("rich", plain, module)


def _load_nats(plain: Loader, module: ModuleType) -> None:
    _load_without("aiohttp", plain, module)
    transport: Any = module
    if transport.aiohttp is None:
        transport.aiohttp, transport.multidict = _Late("aiohttp"), _Late("multidict")


def _load_without(name: str, plain: Loader, module: ModuleType) -> None:
    if name in sys.modules:
        plain.exec_module(module)
        return
    modules: dict[str, ModuleType | None] = sys.modules  # pyright: ignore[reportAssignmentType]
    modules[name] = None  # not installed
    try:
        plain.exec_module(module)
    finally:
        del modules[name]


class _Late:
    """Imports a module when it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


_LOADS: Final = {
    "nats.aio.transport": _load_nats,
    "structlog.dev": _load_structlog,
    "structlog.tracebacks": _load_structlog,
}
