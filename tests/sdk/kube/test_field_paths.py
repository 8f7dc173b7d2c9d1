"""Paths to fields, and what they find."""

from __future__ import annotations

import pytest

from fleetbus.kube.field_paths import FieldPath, InvalidPath, Special, Value
from fleetbus.kube.selectors import FieldSelector
from support.rows import each_row

POD = {
    "metadata": {
        "name": "web",
        "labels": {"app.kubernetes.io/name": "web", "app": "shop"},
        "annotations": {"a[0]": "odd"},
    },
    "spec": {
        "containers": [{"image": "a:1", "ports": [80, 81]}, {"image": "b:2"}, "no map"],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "priority": 0,
        "empty": [],
        "hostNetwork": False,
        "odd.key": {"b": 1.5},
    },
}


@each_row(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        (".metadata.name", "web"),
        ("{.metadata.name}", "web"),
        ("metadata.labels.app.kubernetes.io/name", "web"),
        ("metadata.labels['app.kubernetes.io/name']", "web"),
        (r"metadata.labels.app\.kubernetes\.io/name", "web"),
        ("metadata.annotations.a[0]", "odd"),
        ("spec.nodeSelector['kubernetes.io/os']", "linux"),
        (r"spec.odd\.key.b", 1.5),
        ('spec["odd.key"].b', 1.5),
        ("spec.containers[*].image", ("a:1", "b:2")),
        ("spec.containers[1].image", "b:2"),
        ("spec.containers[7].image", None),
        ("spec.containers[*].ports[*]", (80, 81)),
        ("spec.empty[*]", ()),
        ("spec.priority", 0),
        ("spec.hostNetwork", False),
        ("spec.containers", Special.COMPOSITE),
        ("spec.containers[*]", (Special.COMPOSITE, Special.COMPOSITE, "no map")),
        ("spec.priority.deeper", None),
        ("metadata.name[0]", None),
        ("absent.at.all", None),
    ],
)
def test_a_path_finds_its_field(path: str, value: Value):
    field_path = FieldPath.parse(path)
    assert field_path.read(POD) == value
    assert FieldPath.parse(str(field_path)) == field_path


@each_row(
    "path",
    [
        *("", ".", "a..b", "a.", "a[", "a[x]", "[0]", "[*].a", "a b", "a[-1]", "a]", "a\\", "{a"),
        *("x" * 513, ".".join("a" * 25), "a[9999999]", "a['']"),
    ],
)
def test_a8_a_malformed_or_long_path_is_refused_with_an_example(path: str):
    with pytest.raises(InvalidPath, match=r"is not a path of at most .* like status\.phase"):
        FieldPath.parse(path)


@each_row(
    ("text", "matches"),
    [
        ("spec.containers[*].image=b:2", True),
        ("spec.containers[*].image=c:3", False),
        ("spec.containers[*].image!=b:2", False),
        ("spec.containers[*].image!=c:3", True),
        ("spec.containers[*].image in (c:3, a:1)", True),
        ("spec.containers[*].image notin (c:3, a:1)", False),
        ("spec.containers[0].image=a:1", True),
        ("spec.empty[*]=", True),
        ("spec.containers=", False),
        ("metadata.labels.app.kubernetes.io/name=web", True),
        ("spec.hostNetwork=false,spec.priority=0", True),
    ],
)
def test_selectors_reach_elements_and_keys_with_dots(text: str, matches: bool):
    assert FieldSelector.parse(text).matches(POD) is matches
