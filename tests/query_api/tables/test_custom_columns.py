"""The columns of custom resources are those of their definitions, as API servers print them."""

from __future__ import annotations

from typing import Any

from fleetbus.kube.path_budget import PathBudget
from fleetbus.snapshot import Definition
from fleetbus_proto.events import PrinterColumn
from fleetbus_query_api.catalog.catalog import KnownResource
from fleetbus_query_api.tables.columns import columns_of
from support.rows import each_row

Tree = dict[str, Any]

OBJECT: Tree = {
    "metadata": {"name": "w", "creationTimestamp": "2001-01-01T00:00:00Z"},
    "spec": {"size": 3, "ratio": 1.5, "on": True, "tags": ["a", "b"], "m": {"z": 1, "a": True}},
    "status": {
        "at": "2001-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Synced", "status": "False"}],
    },
}


def widgets(**definitions: list[PrinterColumn]) -> KnownResource:
    by_cluster = {name: Definition(columns=columns) for name, columns in definitions.items()}
    return KnownResource("example.com", "widgets", "Widget", True, ("v1",), definitions=by_cluster)


def column(path: str, type_: str = "string", name: str = "X") -> PrinterColumn:
    return PrinterColumn(name=name, type=type_, json_path=path)


@each_row(
    ("path", "type_", "cell"),
    [
        (".spec.size", "integer", 3),
        (".spec.size", "number", 3),
        (".spec.size", "string", "3"),
        (".spec.ratio", "integer", 1),
        (".spec.ratio", "number", 1.5),
        (".spec.on", "boolean", True),
        (".spec.on", "string", "true"),
        (".spec.on", "integer", None),
        (".spec.size", "boolean", None),
        (".spec.tags", "string", '["a","b"]'),
        (".spec.m", "string", '{"a":true,"z":1}'),
        (".spec.tags[1]", "string", "b"),
        (".spec.tags[2]", "string", None),
        (".spec.missing", "string", None),
        ('.status.conditions[?(@.type=="Ready")].status', "string", "True"),
        (".metadata['name']", "string", "w"),
        (".spec.size", "date", None),
        (".metadata.name", "date", "<invalid>"),
        (".spec.[", "string", None),
        (".spec.size", "unheard-of", None),
    ],
)
def test_a_cell_is_the_first_value_if_it_is_of_the_type(path: str, type_: str, cell: Any):
    _, cell_column = columns_of(widgets(c1=[column(path, type_)]))

    assert cell_column.render(OBJECT, PathBudget()) == cell


def test_a_date_is_an_age():
    _, cell_column = columns_of(widgets(c1=[column(".status.at", "date")]))

    assert str(cell_column.render(OBJECT, PathBudget())).endswith("y")


def test_without_a_definition_there_is_the_age():
    for resource in (widgets(), widgets(c1=[])):
        name, age = columns_of(resource)
        assert (name.name, age.name, age.type) == ("Name", "Age", "date")


def test_clusters_of_the_answer_decide_and_the_most_common_definition_wins():
    first, other = [column(".a", name="A")], [column(".b", name="B")]
    resource = widgets(c1=first, c2=other, c3=other)

    assert [c.name for c in columns_of(resource)] == ["Name", "B"]
    assert [c.name for c in columns_of(resource, ["c1"])] == ["Name", "A"]
    assert [c.name for c in columns_of(resource, ["c4"])] == ["Name", "Age"]
