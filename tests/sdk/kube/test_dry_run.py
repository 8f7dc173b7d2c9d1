"""A table of what would come of a write that is not sent."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fleetbus.errors import AlreadyExists, Conflict, Invalid, KubeError, NotFound
from fleetbus.kube.dry_run import Write
from fleetbus.kube.requests import Call, path_of, read_path
from fleetbus.owned_objects.executor import ONLY_CREATE
from support.rows import each_row

MAPS = "v1/configmaps"
APPLY, MERGE, PATCH = (
    f"application/{kind}" for kind in ("apply-patch+yaml", "merge-patch+json", "json-patch+json")
)
LIVE: dict[str, Any] = {
    "metadata": {"name": "m", "uid": "u", "resourceVersion": "7", "creationTimestamp": "then"},
    "data": {"a": "1"},
    "status": {"seen": "yes"},
}


def write(method: str, body: Any, kind: str = "", suffix: str = "") -> Write:
    path = path_of(MAPS, "default", "" if method == "POST" else "m") + suffix
    call = Call(method, path, body=orjson.dumps(body), content_type=kind)
    return Write.of(call, read_path(path))


def of(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "m", **metadata}, "data": {"b": "2"}}


@each_row(
    ("planned", "data"),
    [
        (write("PUT", of()), {"b": "2"}),
        (write("PATCH", of(), APPLY), {"a": "1", "b": "2"}),
        (write("PATCH", of(uid="u"), APPLY), {"a": "1", "b": "2"}),
        (write("PATCH", {"data": {"a": None}}, MERGE), {}),
        (write("PATCH", [{"op": "remove", "path": "/data/a"}], PATCH), {}),
        (write("PUT", {**of(), "status": {}}, suffix="/status"), {"a": "1"}),
    ],
)
def test_a_write_changes_what_is_there(planned: Write, data: dict[str, str]):
    after = planned.result(LIVE, new_uid="new")
    assert after is not None
    assert after["data"] == data
    assert (after["metadata"]["uid"], after["metadata"]["creationTimestamp"]) == ("u", "then")
    assert LIVE["data"] == {"a": "1"}


def test_only_the_status_is_written_through_its_subresource():
    after = write("PUT", {**of(), "status": {"seen": "no"}}, suffix="/status")
    assert after.result(LIVE, new_uid="") == {**LIVE, "status": {"seen": "no"}}


@pytest.mark.parametrize("planned", [write("POST", of()), write("PATCH", of(), APPLY)])
def test_what_is_missing_is_created(planned: Write):
    after = planned.result(None, new_uid="new")
    assert after is not None
    assert (after["metadata"]["uid"], after["metadata"]["namespace"]) == ("new", "default")
    assert planned.path == path_of(MAPS, "default", "m")


@each_row(
    ("planned", "before", "error"),
    [
        (write("POST", of()), LIVE, AlreadyExists),
        (write("PUT", of()), None, NotFound),
        (write("PATCH", {}, MERGE), None, NotFound),
        (write("DELETE", {}), None, NotFound),
        (write("PATCH", of(resourceVersion=ONLY_CREATE), APPLY), LIVE, Conflict),
        (write("PATCH", of(uid="other"), APPLY), LIVE, Conflict),
        (write("PUT", of(resourceVersion="6")), LIVE, Conflict),
        (write("DELETE", {"preconditions": {"uid": "other"}}), LIVE, Conflict),
        (write("DELETE", {"preconditions": {"resourceVersion": "6"}}), LIVE, Conflict),
        (write("PATCH", [{"op": "remove", "path": "/data/x"}], PATCH), LIVE, Invalid),
    ],
)
def test_d5_what_a_server_would_refuse_is_refused(
    planned: Write, before: dict[str, Any] | None, error: type[KubeError]
):
    with pytest.raises(error):
        planned.result(before, new_uid="new")


def test_finalizers_keep_what_is_deleted_until_the_last_is_gone():
    delete = write("DELETE", {"preconditions": {"uid": "u", "resourceVersion": "7"}})
    assert delete.result(LIVE, new_uid="") is None
    finalized = {**LIVE, "metadata": {**LIVE["metadata"], "finalizers": ["f"]}}
    leaving = delete.result(finalized, new_uid="")
    assert leaving is not None
    assert leaving["metadata"]["deletionTimestamp"]
    release = write("PATCH", {"metadata": {"finalizers": None}}, MERGE)
    assert release.result(leaving, new_uid="") is None
