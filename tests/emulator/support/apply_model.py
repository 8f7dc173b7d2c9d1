"""Server-side apply as its users see it: what FieldsV1 says, and random configurations.

Nothing here is the server's: a path of FieldsV1 tells by itself whether it goes into a map, into
a keyed list or into a set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

JsonObject = dict[str, Any]
Path = tuple[str, ...]
ABSENT = object()
OWNABLE_METADATA = ("labels", "annotations")
# How the lists of widgets and Deployments merge; all others are atomic.
KEYS = {"containers": ("name",), "env": ("name",), "items": ("name",)}
PORT_KEYS = ("containerPort", "protocol")
SETS = ("tags",)
FREE = "f:free"
ATOMIC_MAPS = ("selector",)
# To Go these are the same whether they are empty or absent: one may own an absent one.
TEXT_MAPS = ("f:labels", "f:annotations")
DEFAULTS = {"protocol": "TCP"}


def paths_in(tree: JsonObject, path: Path = ()) -> Iterator[Path]:
    """The members of a FieldsV1 tree."""
    for element, below in tree.items():
        if element == ".":
            yield path
        elif below:
            yield from paths_in(below, (*path, element))
        else:
            yield (*path, element)


def owned(obj: JsonObject) -> dict[tuple[str, str, str], set[Path]]:
    """The fields of each manager, by manager, operation and subresource."""
    entries: list[JsonObject] = obj["metadata"].get("managedFields") or []
    paths_of = {
        (e["manager"], e["operation"], e.get("subresource", "")): set(paths_in(e["fieldsV1"]))
        for e in entries
    }
    assert len(paths_of) == len(entries), "two entries of one manager"
    return paths_of


def at(obj: Any, path: Path) -> Any:
    """The value at a path; ABSENT if there is none."""
    value = obj
    for element in path:
        kind, _, key = element.partition(":")
        if kind == "f":
            fields: JsonObject = cast("JsonObject", value) if isinstance(value, dict) else {}
            value = fields.get(key, ABSENT)
        else:
            value = _item(cast("list[Any]", value), kind, key)
        if value is ABSENT:
            return {} if path[-1] in TEXT_MAPS else ABSENT
    return value


def _item(items: Any, kind: str, key: str) -> Any:
    if not isinstance(items, list):
        return ABSENT
    fields = orjson.loads(key)
    for item in cast("list[Any]", items):
        if kind == "v" and item == fields:
            return item
        if kind == "k" and all({**DEFAULTS, **item}.get(k) == v for k, v in fields.items()):
            return item
    return ABSENT


def leaves(config: JsonObject) -> dict[Path, Any]:
    """The leaves of a configuration with their values; of keyed items also the items themselves."""
    values: dict[Path, Any] = {}
    for name, value in config.items():
        if name in ("spec", "status"):
            _collect(value, (f"f:{name}",), name, values)
    for name in OWNABLE_METADATA:
        if config["metadata"].get(name):
            _collect(config["metadata"][name], ("f:metadata", f"f:{name}"), name, values)
    return values


def _collect(value: Any, path: Path, name: str, values: dict[Path, Any]) -> None:
    below: list[tuple[str, Any, str]] = []
    if isinstance(value, dict) and name not in ATOMIC_MAPS:
        fields = cast("JsonObject", value)
        below = [(f"f:{inner}", field_value, inner) for inner, field_value in fields.items()]
    elif isinstance(value, list):
        below = _items(cast("list[Any]", value), name)
    if not below:
        values[path] = value
        return
    # That an item of a keyed list, or of a map whose fields nobody declared, is there is all that
    # counts; a field that is declared is owned by what is below it alone.
    if path[-1].startswith("k:") or FREE in path[:-1]:
        values[path] = ABSENT
    for element, part, inner in below:
        _collect(part, (*path, element), inner, values)


def _items(items: list[Any], name: str) -> list[tuple[str, Any, str]]:
    if name in SETS:
        return [(f"v:{orjson.dumps(item).decode()}", item, "") for item in items]
    keys = PORT_KEYS if name == "ports" else KEYS.get(name)
    if keys is None:
        return []
    return [(_key_element(item, keys), item, "") for item in items]


def _key_element(item: JsonObject, keys: tuple[str, ...]) -> str:
    key = {name: item.get(name, DEFAULTS.get(name)) for name in sorted(keys)}
    return f"k:{orjson.dumps(key).decode()}"


# random configurations --------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """The object that is applied to.

    Attributes:
        base: What somebody created; it has all that is required.
    """

    path: str
    base: JsonObject

    @property
    def head(self) -> JsonObject:
        return {name: self.base[name] for name in ("apiVersion", "kind")}


def _some(random: Random, **choices: Any) -> JsonObject:
    """About half of some fields, each with one of its values."""
    return {
        name: random.choice(values) for name, values in choices.items() if random.random() < 0.5
    }


def _text_map(random: Random) -> JsonObject:
    return _some(random, p=("1", "2"), q=("1", "2"), r=("1", "2"))


def random_metadata(random: Random, name: str) -> JsonObject:
    texts = {field: _text_map(random) for field in OWNABLE_METADATA if random.random() < 0.5}
    return {"name": name, **{field: text for field, text in texts.items() if text}}


def random_widget(random: Random) -> JsonObject:
    """The spec of a widget, parts of it at least."""
    spec = _some(
        random,
        size=(1, 2, 3),
        color=("red", "green"),
        port=(80, "http"),
        note=("a", "b"),
        list=(["a"], ["a", "b"], []),
        free=({"x": {"y": 1}}, {"x": {"z": 1}, "w": [1]}, {"x": {"y": 2}}),
    )
    if random.random() < 0.6:
        names = random.sample(("a", "b", "c"), k=random.choice((1, 2)))
        items = [{"name": n, **_some(random, value=("1", "2"))} for n in names]
        spec["items"] = items
    if random.random() < 0.5:
        spec["tags"] = random.sample(("a", "b", "c"), k=random.choice((1, 2)))
    return spec


def random_deployment(random: Random) -> JsonObject:
    """The spec of a Deployment, parts of it at least."""
    spec = _some(random, replicas=(1, 2, 5), paused=(True,), minReadySeconds=(5, 9))
    containers: list[JsonObject] = []
    for name in random.sample(("main", "side"), k=random.choice((0, 1, 1, 2))):
        container: JsonObject = {"name": name, **_some(random, image=("i:1", "i:2"))}
        if name == "side":
            container["image"] = random.choice(("s:1", "s:2"))
        if random.random() < 0.5:
            names = random.sample(("A", "B"), k=random.choice((1, 2)))
            container["env"] = [{"name": n, "value": random.choice(("1", "2"))} for n in names]
        if random.random() < 0.4:
            ports = random.sample((80, 443), k=random.choice((1, 2)))
            container["ports"] = [{"containerPort": p, **_some(random, name=("x",))} for p in ports]
        containers.append(container)
    template: JsonObject = {}
    if containers:
        template["spec"] = {"containers": containers}
    if random.random() < 0.4 and (annotations := _text_map(random)):
        template["metadata"] = {"annotations": annotations}
    return {**spec, **({"template": template} if template else {})}
