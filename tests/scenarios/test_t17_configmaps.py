"""T17: a ConfigMap whose texts differ per cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.rigs.distribution import EVERYWHERE, HUB, IN_FULL, Distribution, distribution
from support.rigs.fleet import Rig

pytestmark = [IN_FULL, pytest.mark.timeout(600)]
MAPS, NAME = "v1/configmaps", "multiclusterresource-configmap"
TEXT = "property.1=value-1\nproperty.2=value-2\nproperty.3=value-3\n"
DATA = {
    "example.property.1": "hello",
    "example.property.2": "world",
    "example.property.file": TEXT,
}
CONFIG_MAP: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": NAME, "namespace": "default"},
    "data": DATA,
}


def on_t1(*actions: dict[str, Any]) -> dict[str, Any]:
    return {"clusters": [{"name": "t1", "action": list(actions)}]}


def data(d: Distribution) -> dict[str, Any]:
    return d.of(lambda obj: obj["data"], MAPS, NAME)


async def test_t17_texts_reach_each_cluster_unharmed_and_go_with_their_customization(
    open_rig: Callable[..., Awaitable[Rig]],
) -> None:
    async with distribution(open_rig) as d:
        value = ["patch-configmaps-test"]
        actions = [
            {"op": "replace", "path": "/data/example.property.1", "value": value},
            {"op": "add", "path": "/data/cluster1test", "value": value},
        ]
        d.create(template=CONFIG_MAP, placement=EVERYWHERE, customize=on_t1(*actions))
        await d.applied()
        changed = dict.fromkeys(("example.property.1", "cluster1test"), "patch-configmaps-test")
        assert data(d) == {"t1": DATA | changed, "t2": DATA, HUB: DATA}

        text = "a=b=c\nd=e"
        plain = {"op": "replace", "path": "/data/example.property.file", "value": text}
        d.edit(customize=on_t1(plain))
        await d.applied()
        assert data(d)["t1"] == DATA | {"example.property.file": text}

        d.edit(customize=None)
        await d.applied()
        assert data(d) == {"t1": DATA, "t2": DATA, HUB: DATA}

        # A list whose elements have more than one "=" loses text, and says so.
        d.edit(customize=on_t1({"op": "add", "path": "/data", "value": ["a=b=c"]}))
        await d.applied()
        assert data(d)["t1"] == {"a": "b"}
        assert "second '=' of a" in d.condition("Warning")["message"]
        await d.close()
