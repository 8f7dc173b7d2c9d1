"""Tables rendered by the server: streamed, bounded, with freshness, for who may list."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.snapshot import Definition, ResourceRecord, ResourceState
from fleetbus_proto.events import PrinterColumn
from fleetbus_query_api.tables import stream

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

POD: dict[str, Any] = {
    "spec": {"nodeName": "n1", "containers": [{"name": "web", "image": "nginx:1"}]},
    "status": {"phase": "Running", "podIP": "10.0.0.1"},
}


async def table(api: QueryApi, resource: str = "pods", **query: Any) -> list[Any]:
    url = f"{api.url}/fleet/v1/resources/{resource}"
    answer = await api.client.get(url, params={"view": "table", **query})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    await api.add_cluster("c1")
    await api.add_cluster("c2", reported_ago=100)
    await api.add("c1", "core/pods", "web", labels={"app": "web", "a": "1"}, **POD)
    await api.add("c1", "core/pods", "db", namespace="test", **POD)
    await api.add("c2", "core/pods", "web", labels={"app": "web"}, **POD)
    return api


async def test_a4_a_table_has_columns_freshness_rows_and_an_end(fleet: QueryApi):
    head, *rows, end = await table(fleet)

    names = [column["name"] for column in head["columns"]]
    assert names == ["Cluster", "Namespace", "Name", "Ready", "Status", "Restarts", "Age"]
    assert head["resource"]["plural"] == "pods"
    assert head["incomplete"] == ["c2"]
    assert head["freshness"]["c1"]["complete"] is True
    assert [row[:6] for row in rows] == [
        ["c1", "prod", "web", "0/1", "Running", "0"],
        ["c1", "test", "db", "0/1", "Running", "0"],
        ["c2", "prod", "web", "0/1", "Running", "0"],
    ]
    assert (end["end"]["rows"], end["end"]["hasMore"]) == (3, False)


async def test_a_table_is_selected_like_a_list(fleet: QueryApi, subtests: pytest.Subtests):
    for query, expected in [
        ({"namespace": "test"}, ["c1/db"]),
        ({"name": "web"}, ["c1/web", "c2/web"]),
        ({"cluster": "c2"}, ["c2/web"]),
        ({"labelSelector": "app=web,a=1"}, ["c1/web"]),
        ({"fieldSelector": "status.phase=Running,metadata.name!=web"}, ["c1/db"]),
        ({"fieldSelector": "status.phase=Failed"}, []),
        ({"limit": "2"}, ["c1/web", "c1/db"]),
        ({"sort": "-metadata.namespace,metadata.name"}, ["c1/db", "c1/web", "c2/web"]),
    ]:
        with subtests.test(query=query, shown=expected):
            _, *rows, end = await table(fleet, **query)

            assert [f"{row[0]}/{row[2]}" for row in rows] == expected
            assert end["end"]["rows"] == len(expected)
            assert end["end"]["hasMore"] is ("limit" in query)


@pytest.mark.parametrize("sort", ["", "-metadata.name"])
async def test_a_table_goes_on_where_an_earlier_one_ended(fleet: QueryApi, sort: str):
    parameters = {"sort": sort} if sort else {}
    _, *rows, last = await table(fleet, **parameters)
    assert (last["end"]["hasMore"], last["end"]["continue"]) == (False, "")

    paged: list[Any] = []
    token: dict[str, str] = {}
    for _ in rows:
        _, row, end = await table(fleet, limit="1", **parameters, **token)
        paged.append(row)
        token = {"continue": end["end"]["continue"]}
    assert paged == rows
    assert token == {"continue": ""}


async def test_a_malformed_token_of_a_table_is_refused(fleet: QueryApi):
    answer = await fleet.get("/fleet/v1/resources/pods", view="table", **{"continue": "x"})
    assert answer.status_code == 400


async def test_wide_columns_and_labels_come_when_asked_for(fleet: QueryApi):
    head, row, *_ = await table(fleet, wide="1", showLabels="1")

    names = [column["name"] for column in head["columns"]]
    assert names[7:] == ["IP", "Node", "Nominated Node", "Readiness Gates", "Labels"]
    assert row[7:] == ["10.0.0.1", "n1", "<none>", "<none>", "a=1,app=web"]


async def test_a_long_table_is_read_in_pages_and_complete(
    fleet: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stream, "PAGE", 2)
    for number in range(9):
        await fleet.add("c1", "core/configmaps", f"m{number}", data={"k": "v"})

    _, *rows, end = await table(fleet, "cm")

    assert [row[2] for row in rows] == [f"m{number}" for number in range(9)]
    assert [row[3] for row in rows] == ["1"] * 9
    assert end["end"]["rows"] == 9


async def test_custom_resources_have_the_columns_of_their_definition(fleet: QueryApi):
    columns = [
        PrinterColumn(name="Size", type="integer", json_path=".spec.size"),
        PrinterColumn(name="Deep", type="string", json_path=".spec.x", priority=1),
    ]
    record = ResourceRecord(
        group="example.com",
        version="v1",
        plural="widgets",
        kind="Widget",
        state=ResourceState.SYNCED,
        definition=Definition(short_names=["wd"], columns=columns),
    )
    await fleet.snapshot.writer.put_resource_state("c1", record)
    await fleet.add("c1", "example.com/widgets", "w1", spec={"size": 3})
    await fleet.add("c1", "example.com/widgets", "w2", spec={"size": "big"})

    head, *rows, _ = await table(fleet, "wd")

    assert [column["name"] for column in head["columns"]][2:] == ["Name", "Size"]
    assert [row[2:] for row in rows] == [["w1", "3"], ["w2", ""]]


async def test_bad_input_is_refused_before_the_first_line(
    fleet: QueryApi, subtests: pytest.Subtests
):
    for query, why in [
        ({"view": "tables"}, "view"),
        ({"wide": "1"}, "view=table"),
        ({"showLabels": "1"}, "view=table"),
        ({"view": "table", "limit": "0"}, "limit"),
        ({"view": "table", "sort": "a..b"}, "sort"),
        ({"view": "table", "fields": "metadata.name"}, "fields"),
        ({"view": "table", "wide": "perhaps"}, "wide"),
        ({"view": "table", "labelSelector": "a in"}, "selector"),
    ]:
        with subtests.test(query=query, why=why):
            answer = await fleet.client.get(f"{fleet.url}/fleet/v1/resources/pods", params=query)

            assert answer.status_code == 400
            assert why in answer.json()["detail"]


async def test_an_unknown_resource_is_a_404(fleet: QueryApi):
    url = f"{fleet.url}/fleet/v1/resources/pots"
    answer = await fleet.client.get(url, params={"view": "table"})

    assert (answer.status_code, "pods" in answer.json()["detail"]) == (404, True)


async def test_the_types_of_the_fleet_are_listed(fleet: QueryApi):
    answer = await fleet.client.get(f"{fleet.url}/fleet/v1/resources")

    pods = next(item for item in answer.json()["items"] if item["plural"] == "pods")
    assert pods == {
        "group": "core",
        "plural": "pods",
        "kind": "Pod",
        "namespaced": True,
        "versions": ["v1"],
        "singular": "pod",
        "shortNames": ["po"],
        "categories": ["all"],
    }
