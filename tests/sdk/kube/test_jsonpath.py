"""JSONPath means what it means to kubectl and to API servers."""

from __future__ import annotations

from typing import Any

import pytest

from fleetbus.kube.jsonpath import MAX_LENGTH, InvalidJsonPath, JsonPath, JsonPathTemplate
from support.rows import each_row

TREE: dict[str, Any] = {
    "metadata": {"name": "web", "labels": {"app.kubernetes.io/name": "w", "a": "1"}},
    "spec": {"replicas": 3, "paused": False, "ports": [80, 443, 8080], "ratio": 0.5},
    "status": {
        "conditions": [
            {"type": "Ready", "status": "True", "at": 5},
            {"type": "Synced", "status": "False", "at": 7},
        ],
        "deep": {"at": 9},
    },
}


@each_row(
    ("path", "values"),
    [
        (".metadata.name", ["web"]),
        ("metadata.name", ["web"]),
        ("$.metadata.name", ["web"]),
        (".metadata['name']", ["web"]),
        (r".metadata.labels.app\.kubernetes\.io/name", ["w"]),
        (r".metadata.labels['app\.kubernetes\.io/name']", ["w"]),
        (".metadata.labels['app.kubernetes.io/name']", []),
        (".spec.ports[]", [80]),
        (".metadata.missing.name", []),
        (".spec.ports[0]", [80]),
        (".spec.ports[-1]", [8080]),
        (".spec.ports[0:2]", [80, 443]),
        (".spec.ports[:]", [80, 443, 8080]),
        (".spec.ports[::2]", [80, 8080]),
        (".spec.ports[0,2]", [80, 8080]),
        (".spec.ports[1:1]", []),
        (".spec.ports[*]", [80, 443, 8080]),
        (".spec['replicas','ratio']", [3, 0.5]),
        (".status.conditions[*].type", ["Ready", "Synced"]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type == 'Ready')].status", ["True"]),
        ('.status.conditions[?(@.type!="Ready")].type', ["Synced"]),
        (".status.conditions[?(@.at>5)].type", ["Synced"]),
        (".status.conditions[?(@.at<=5)].type", ["Ready"]),
        (".status.conditions[?(@.missing)].type", []),
        (".status.conditions[?(@.at)].type", ["Ready", "Synced"]),
        (".spec.ports[?(@>100)]", [443, 8080]),
        (".spec.ports[?(@ == 80)]", [80]),
        (".metadata.labels.*", ["1", "w"]),
        ("..at", [5, 7, 9]),
        (".status..at", [5, 7, 9]),
        (".spec.paused", [False]),
        (".", [TREE]),
    ],
)
def test_a_path_finds_its_values(path: str, values: list[Any]):
    assert JsonPath.parse(path).find(TREE) == values


@each_row("path", [
        ".a[", '.a["b"]', ".a[?(@.b==]", ".a.b}", ".a[x y]", ".a b", ".spec.ports[0:2:0]", ".a[?(]",
        "." + "a" * MAX_LENGTH, "[?(@" * 150, ".a..b..", ".a[-]", ".a.", "{.a}",
    ])  # fmt: skip
def test_a_malformed_path_is_refused(path: str):
    with pytest.raises(InvalidJsonPath):
        JsonPath.parse(path)


@each_row(
    "path",
    [".spec.ports[3]", ".spec[0]", ".metadata.name[?(@.a)]", ".status.conditions[?(@.at=='5')]"],
)
def test_what_cannot_be_applied_is_an_error(path: str):
    with pytest.raises(InvalidJsonPath):
        JsonPath.parse(path).find(TREE)


@each_row(
    ("template", "text"),
    [
        ("{.metadata.name}", "web"),
        (".metadata.name", "web"),
        ("name: {.metadata.name}!", "name: web!"),
        ('{.metadata.name}{"\\t"}{.spec.replicas}{"\\n"}', "web\t3\n"),
        ("{.spec.ports}", "[80,443,8080]"),
        ("{.spec.ports[*]}", "80 443 8080"),
        ("{.metadata.labels}", '{"a":"1","app.kubernetes.io/name":"w"}'),
        ("{.spec.paused} {.spec.ratio}", "false 0.5"),
        ("{.missing}", ""),
        (
            "{range .status.conditions[*]}{.type}={.status}{'\\n'}{end}",
            "Ready=True\nSynced=False\n",
        ),
        ("{range .status.conditions[*]}[{range .a[*]}{end}{.at}]{end}", "[5][7]"),
        ('{"{"}', "{"),
    ],
)
def test_a_template_is_rendered(template: str, text: str):
    assert JsonPathTemplate.parse(template).render(TREE) == text


@each_row("template", ["{.a", "{range .a}", "{end}", "{.a}{", "{'a}"])
def test_a_malformed_template_is_refused(template: str):
    with pytest.raises(InvalidJsonPath):
        JsonPathTemplate.parse(template)


def test_a_deep_or_wide_object_does_not_end_the_process():
    deep: Any = {}
    for _ in range(5_000):
        deep = {"a": deep}
    assert len(JsonPath.parse("..a").find(deep)) == 101
    wide = {"a": [{"b": list(range(1_000))} for _ in range(200)]}
    with pytest.raises(InvalidJsonPath, match="more than"):
        JsonPath.parse("..b[*]").find(wide)
