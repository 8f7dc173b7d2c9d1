"""The fields of the Kubernetes messages: what messages.txt says, as objects.

Read on first use and once per process; the table is the same for all clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

TABLE = "messages.txt"
META = "k8s.io.apimachinery.pkg.apis.meta.v1"
ALIASES = {
    "core": "k8s.io.api.core.v1",
    "meta": META,
    "resource": "k8s.io.apimachinery.pkg.api.resource",
    "intstr": "k8s.io.apimachinery.pkg.util.intstr",
    "runtime": "k8s.io.apimachinery.pkg.runtime",
}
SCALARS = frozenset({"string", "bytes", "bool", "int32", "int64"})


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        type: A scalar's name, or the full name of a message.
        keys: The fields that items of a list are merged by; empty for a set, None if there is no
            merging.
        inline: In JSON the fields of its message are inlined.
        kept: A zero says something.
    """

    name: str
    number: int
    type: str
    is_list: bool = False
    is_map: bool = False
    keys: tuple[str, ...] | None = None
    inline: bool = False
    kept: bool = False

    @property
    def scalar(self) -> bool:
        """Whether its values are no messages."""
        return self.type in SCALARS


@dataclass(slots=True)
class Message:
    """A message; its fields by number.

    Attributes:
        package: For example `k8s.io.api.core.v1`.
        description: A sentence, or nothing.
    """

    package: str
    name: str
    description: str = ""
    numbers: dict[int, Field] = field(default_factory=dict[int, Field])

    @property
    def full_name(self) -> str:
        """For example `k8s.io.api.core.v1.Pod`."""
        return f"{self.package}.{self.name}"


@dataclass(slots=True)
class Table:
    """All messages, by full name and by (apiVersion, kind)."""

    messages: dict[str, Message] = field(default_factory=dict[str, Message])
    kinds: dict[tuple[str, str], Message] = field(default_factory=dict[tuple[str, str], Message])


def message(full_name: str) -> Message:
    """The message of that name, which must exist."""
    return _table().messages[full_name]


def of_kind(api_version: str, kind: str) -> Message | None:
    """The message of a kind; None if the table has none."""
    return _table().kinds.get((api_version, kind))


@cache
def json_fields(full_name: str) -> dict[str, Field]:
    """The fields of a message by their names in JSON, inlined ones among them."""
    fields: dict[str, Field] = {}
    for entry in message(full_name).numbers.values():
        fields |= json_fields(entry.type) if entry.inline else {entry.name: entry}
    return fields


@cache
def _table() -> Table:
    text = files("fleetbus_emulator.apiserver.encoding").joinpath(TABLE).read_text()
    return parse(text)


def parse(text: str) -> Table:
    """Read a table; its form is explained at the top of messages.txt."""
    table = Table()
    package = version = description = ""
    current: Message | None = None
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] == ";":
            continue
        if line.startswith(" ") and current is not None:
            _add_fields(current, words)
        elif words[0] == "@":
            package, version = words[1], words[2] if len(words) > 2 else ""  # noqa: PLR2004
        elif words[0] == "#":
            description = line[2:]
        else:
            current = Message(package, words[0], description)
            description = ""
            _add_fields(current, words[1:])
            table.messages[current.full_name] = current
            table.kinds[version, current.name] = current
    return table


def _add_fields(target: Message, words: list[str]) -> None:
    for word in words:
        name, _, spec = word.partition("=")
        number, _, kind = spec.partition(":")
        target.numbers[int(number)] = _field(name, int(number), kind, target.package)


def _field(name: str, number: int, kind: str, package: str) -> Field:
    bare, is_kept = kind.removesuffix("!"), kind.endswith("!")
    keys: tuple[str, ...] | None = None
    if bare.endswith("]"):
        bare, _, listed = bare[:-1].partition("[")
        keys = tuple(key for key in listed.split(",") if key)
    return Field(
        name=name,
        number=number,
        type=_full_type(bare.strip("*+{}"), package),
        is_list=bare.startswith("*"),
        is_map=bare.startswith("{"),
        keys=keys,
        inline=bare.startswith("+"),
        kept=is_kept,
    )


def _full_type(name: str, package: str) -> str:
    if name in SCALARS:
        return name
    alias, dot, local = name.partition(".")
    return f"{ALIASES[alias]}.{local}" if dot else f"{package}.{name}"
