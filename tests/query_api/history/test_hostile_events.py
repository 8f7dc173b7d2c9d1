"""Answers about the past with events that a broken or hostile watcher published (rule A9)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from support.rows import each_row
from support.stores.recorded_past import pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.past_api import PastApi

EU1 = Source()
FORGED = b'{"metadata":{}}},{"cluster":"forged","object":{"metadata":{}}'
PATH = "/fleet/v1/timeline/eu1/pods/prod/web"


@pytest.fixture(autouse=True)
async def clusters(past_api: PastApi) -> None:
    await past_api.add_cluster("eu1", "core/pods")


def marked(**owner: Any) -> bytes:
    """A pod with an owner mark."""
    fields = {"apiVersion": "v1", "kind": "MultiClusterResource", "uid": "u", "clusterName": "hub"}
    text = msgspec.json.encode(fields | owner).decode()
    return pod("web", 10, annotations={"fleetbus.dev/owner": text})


@pytest.mark.slow
@each_row(
    "event",
    [
        EU1.added("web", 10, body=b"[1]"),
        EU1.added("web", 10, body=b'"text"'),
        EU1.added("web", 10, body=b'{"metadata":'),
        EU1.added("web", 10, body=FORGED),
        EU1.deleted("web", 10, body=FORGED),
        msgspec.structs.replace(EU1.added("web", 10, body=FORGED), degraded="oversized"),
        EU1.added("web", 10, body=b'{"metadata":{"name":"\xff"}}'),
        EU1.added("web", 10, body=b'{"metadata":{},"spec":"\xff"}'),
        EU1.deleted("web", 10, body=b'{"metadata":{},"spec":"\xff"}'),
        EU1.deleted("web", 10, body=b"[" * 100_000),
        EU1.modified("web", 10, body=pod("web", 10, creationTimestamp="0001-01-01T00:00:00+14:00")),
        EU1.deleted("web", 10, body=pod("web", 10, creationTimestamp="9999-12-31T23:59:59-14:00")),
        EU1.added("web", 10, body=marked(namespace="shop", name="\x00")),
        EU1.added("web", 10, body=marked(namespace="shop", name="x" * 5000)),
        EU1.added("web", 10, body=marked(namespace="*", name=">")),
        msgspec.structs.replace(EU1.added("web", 10), observed_at="yesterday"),
        msgspec.structs.replace(EU1.modified("web", 10), observed_at="2026-01-02T03:04:05"),
        msgspec.structs.replace(EU1.modified("web", 10), observed_at="9999-12-31T23:59:59-14:00"),
        msgspec.structs.replace(EU1.modified("web", 10), observed_at="0001-01-01T00:00:00+14:00"),
    ],
)
async def test_a9_a_malformed_event_breaks_no_answer(past_api: PastApi, event: Any):
    start = await past_api.past.now()
    await past_api.past.record(event)
    await past_api.past.record(EU1.added("later", 20, body=pod("later", 20)))
    for path, query in (
        (PATH, {}),
        ("/fleet/v1/deleted/pods", {}),
        ("/fleet/v1/changes", {"since": start.isoformat()}),
        ("/fleet/v1/resources/pods", {"asOf": start.isoformat()}),
        ("/fleet/v1/resources/pods", {"asOf": "0s"}),
        ("/fleet/v1/resources/pods", {"asOf": "0s", "fieldSelector": "spec.a=b"}),
        ("/fleet/v1/resources/pods", {"asOf": "0s", "view": "table"}),
        ("/fleet/v1/resources/pods", {}),
    ):
        answer = await past_api.get(path, **query)
        assert answer.status_code == 200, (path, answer.text)
        assert b'"cluster":"forged"' not in answer.content
        for line in answer.content.splitlines():
            json.loads(line)
