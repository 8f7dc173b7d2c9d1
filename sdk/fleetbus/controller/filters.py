"""The filters of a watch: which clusters, and which of their objects.

They are checked when they are declared, so that a mistake is an error at the start and not a watch
that never fires.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Final, TypeAlias

import msgspec

from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import ConfigError
from fleetbus.kube.client import Object
from fleetbus.kube.selectors import LabelSelector
from fleetbus.run.user_code import calling_user_code

ClusterFilter: TypeAlias = Sequence[str] | str | Callable[[ClusterInfo], bool] | None
"""Names or shell patterns such as `prod-*`; a label selector such as `region=eu`, as a string; a
predicate; or None for every cluster."""
Predicate: TypeAlias = Callable[[Object | None, Object | None], bool]
"""Whether a change matters: the object as this controller saw it last (None: never), and as it is
now (None: deleted); never both None. It must not change its arguments."""

_PATTERN: Final = re.compile(r"[a-z0-9*?\[\]!-]+")


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """The clusters that a watch selects."""

    text: str
    """The selection as a string, the same in every process."""
    test: Callable[[str, ClusterInfo | None], bool]
    asks_info: bool = False
    """Whether labels or a function decide, not the name alone."""
    function: Callable[..., object] | None = None
    """The predicate, if it is one."""

    def decide(self, name: str, info: ClusterInfo | None) -> bool | None:
        """Whether a cluster is selected; None while this process does not know the cluster."""
        if self.asks_info and info is None:
            return None
        return self.test(name, info)


def choose_clusters(clusters: ClusterFilter) -> ClusterChoice:
    """Parse a choice of clusters.

    Raises:
        ConfigError: it is invalid.
    """
    if clusters is None:
        return ClusterChoice("*", lambda _name, _info: True)
    if callable(clusters):
        check_plain("clusters", clusters)
        check_takes("clusters", clusters, "cluster")
        return ClusterChoice(
            f"of {name_of(clusters)}",
            lambda _name, info: info is not None and _ask(clusters, info),
            asks_info=True,
            function=clusters,
        )
    if isinstance(clusters, str):
        selector = read_selector("clusters", clusters)
        return ClusterChoice(
            f"with {selector}",
            lambda _name, info: info is not None and selector.matches(info.labels),
            asks_info=True,
        )
    return _named(clusters)


def _ask(predicate: Callable[[ClusterInfo], bool], info: ClusterInfo) -> bool:
    with calling_user_code():
        return bool(predicate(info))


def _named(clusters: Sequence[str]) -> ClusterChoice:
    for pattern in clusters:
        if not _PATTERN.fullmatch(pattern):
            raise ConfigError(
                f"clusters: {pattern!r} is neither a name nor a pattern like 'prod-*'"
            )
    names = sorted(set(clusters))
    matches = re.compile("|".join(map(translate, names)) or r"(?!)").fullmatch
    return ClusterChoice(",".join(names), lambda name, _info: matches(name) is not None)


def read_selector(field: str, text: str) -> LabelSelector:
    """Parse a selector.

    Raises:
        ConfigError: it is invalid; the message names the field.
    """
    try:
        return LabelSelector.parse(text)
    except (ValueError, TypeError, AttributeError) as e:
        raise ConfigError(f"{field}={text!r}: {e}") from e


def read_namespaces(namespaces: Sequence[str] | None) -> frozenset[str] | None:
    """Parse the namespaces of a watch; None for all.

    Raises:
        ConfigError: it is a string, whose letters would be taken for namespaces.
    """
    if isinstance(namespaces, str):
        raise ConfigError(f"namespaces={namespaces!r} must be a list of names")
    return frozenset(namespaces) if namespaces is not None else None


def check_plain(field: str, function: Callable[..., object]) -> None:
    """Refuse a coroutine function where the result is needed at once.

    Raises:
        ConfigError: it is one; what it returns would always count as true.
    """
    if not callable(function):
        raise ConfigError(f"{field} must be a function, not {function!r}")
    call = getattr(function, "__call__", None)  # noqa: B004 -- an object may have an async one
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        raise ConfigError(f"{field} must be a plain function, not `async def`")


def check_takes(field: str, function: Callable[..., object], *arguments: str) -> None:
    """Refuse a function that cannot be called with these arguments.

    Raises:
        ConfigError: it takes others; each call would fail.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some functions written in C have no signature
    try:
        signature.bind(*arguments)
    except TypeError as e:
        taken = f"{getattr(function, '__name__', type(function).__name__)}{signature}"
        raise ConfigError(f"{field} is called with ({', '.join(arguments)}), not as {taken}") from e


def name_of(function: Callable[..., object]) -> str:
    """The full name of a function, the same in every process."""
    place = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{place}"


class ComposedPredicate:
    """A predicate made of others; see `fleetbus.predicates`.

    Its `__qualname__` names them: it is a part of what tells one watch from another (rule P8).
    """

    def __init__(
        self, name: str, decide: Callable[[Iterable[bool]], bool], predicates: Sequence[Predicate]
    ) -> None:
        if not predicates:
            raise ConfigError(f"{name} needs at least one predicate")
        for predicate in predicates:
            check_plain(name, predicate)
            check_takes(name, predicate, "old", "new")
        self._predicates = predicates
        self._decide = decide
        self.__qualname__ = f"{name}({', '.join(map(name_of, predicates))})"

    def __call__(self, old: Object | None, new: Object | None) -> bool:
        """Whether the change passes."""
        return self._decide(bool(predicate(old, new)) for predicate in self._predicates)

    def functions(self) -> Iterator[Callable[..., object]]:
        """The functions that it is made of."""
        for predicate in self._predicates:
            yield from functions_of(predicate)


def functions_of(function: Callable[..., object] | None) -> Iterator[Callable[..., object]]:
    """An author's function; of a composed predicate, those that it is made of; none of None."""
    if isinstance(function, ComposedPredicate):
        yield from function.functions()
    elif function is not None:
        yield function


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PartialMetadata(msgspec.Struct):
    """Labels and annotations of an object: all that selectors and owner marks need."""

    metadata: _Metadata

    @property
    def labels(self) -> dict[str, str]:
        """The labels; may be empty."""
        return self.metadata.labels or {}

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations; may be empty."""
        return self.metadata.annotations or {}


read_metadata: Final = msgspec.json.Decoder(PartialMetadata).decode
