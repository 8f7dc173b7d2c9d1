"""The objects of charts/fleetbus-agent with placeholders, for the manifests of `fleetbus join`."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Final, cast

import yaml

from support.api.rendered_chart import Object, helm

_ROOT: Final = pathlib.Path(__file__).parents[2]
CHART: Final = _ROOT / "charts" / "fleetbus-agent"
FILE: Final = _ROOT / "cli" / "fleetbus_cli" / "clusters" / "agent_objects.json"
NAME: Final = "fleetbus-agent"
_PLACEHOLDERS: Final[Object] = {
    "cluster": "cluster-placeholder",
    "nats": {"url": "nats://url-placeholder", "ca": "-----BEGIN CERTIFICATE-----\n"},
    "registration": {"seed": "SU" + "A" * 56},
    "image": {"repository": "image-placeholder", "tag": "tag"},
    "access": {"mode": "namespaces", "namespaces": ["namespace-placeholder"]},
}


def render_agent(values: Object) -> list[Object]:
    """The objects that helm renders, in the order of `kubectl apply`."""
    with helm().Chart.load(str(CHART)) as chart:
        files = chart.render(values, name=NAME, namespace=NAME)
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return [obj for text in texts for obj in yaml.load_all(text, yaml.CSafeLoader) if obj]


def without_helm(objects: list[Object]) -> list[Object]:
    """Drop the labels that say that helm keeps an object."""

    def walk(tree: Any) -> Any:
        if isinstance(tree, list):
            return [walk(item) for item in cast("list[Any]", tree)]
        if isinstance(tree, dict):
            return {
                key: walk(value)
                for key, value in cast("Object", tree).items()
                if key not in ("app.kubernetes.io/managed-by", "app.kubernetes.io/version")
            }
        return tree

    return walk(objects)


def text() -> str:
    """The file as it should be."""
    return json.dumps(without_helm(render_agent(_PLACEHOLDERS)), indent=1) + "\n"
