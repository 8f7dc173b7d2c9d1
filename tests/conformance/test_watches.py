"""WATCH: where it starts, what it tells, how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from support.api.conformance_client import PARTIAL, TABLE, Api
from support.api.conformance_objects import Space

NAME_OF_INITIAL_END = "k8s.io/initial-events-end"


def now(api: Api, space: Space) -> str:
    return api.get(space.widgets).rv


def only(name: str) -> dict[str, str]:
    return {"fieldSelector": f"metadata.name={name}"}


@pytest.fixture
def two(api: Api, space: Space, name: str) -> dict[str, str]:
    """Two widgets; the selector of just these."""
    for letter in "ba":
        api.post(space.widgets, space.widget(f"{name}-{letter}", {"labels": {"case": name}}))
    return {"labelSelector": f"case={name}"}


@pytest.mark.parametrize("start", [{}, {"resourceVersion": "0"}], ids=["unset", "0"])
def test_a_watch_begins_with_what_there_is(
    api: Api, space: Space, two: dict[str, str], name: str, start: dict[str, str]
):
    with api.watching(space.widgets, **two, **start) as events:
        first = sorted(next(events)["object"]["metadata"]["name"] for _ in "ab")
        assert first == [f"{name}-a", f"{name}-b"]
        api.delete(f"{space.widgets}/{name}-a")
        assert next(events)["type"] == "DELETED"


def test_a_watch_from_a_version_tells_all_that_came_later(api: Api, space: Space, name: str):
    rv, path = now(api, space), f"{space.widgets}/{name}"
    api.post(space.widgets, space.widget(name))
    api.merge(path, {"spec": {"size": 9}})
    api.merge(f"{path}/status", {"status": {"phase": "z"}})
    api.merge(path, {})
    api.delete(path)
    stream = api.watch(space.widgets, 4, resourceVersion=rv, **only(name))
    assert [e["type"] for e in stream.events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    versions = [int(meta["resourceVersion"]) for meta in stream.metas]
    assert versions == sorted(set(versions))  # DELETED has a version of its own
    assert stream.events[-1]["object"]["status"] == {"phase": "z"}


def test_the_stream_has_a_type_and_no_length(api: Api, space: Space, two: dict[str, str]):
    headers = api.watch(space.widgets, 1, **two).headers
    assert headers["content-type"] == "application/json"
    assert headers["transfer-encoding"] == "chunked"


@pytest.mark.parametrize("value", ["true", "True", "1", "t", "yes", ""])
def test_any_value_but_false_is_true(api: Api, space: Space, two: dict[str, str], value: str):
    stream = api.watch(space.widgets, 1, **{**two, "watch": value})
    assert stream.events[0]["type"] == "ADDED"


@pytest.mark.parametrize("value", ["false", "False", "0"])
def test_false_is_false(api: Api, space: Space, value: str):
    assert api.get(space.widgets, watch=value).kind == "WidgetList"


@pytest.mark.usefixtures("two")
def test_one_object_is_watched_by_its_name_in_a_selector(api: Api, space: Space, name: str):
    assert api.watch(space.widgets, **only(f"{name}-a")).changes == [f"ADDED:{name}-a"]
    assert api.get(f"{space.widgets}/{name}-a", watch="1").kind == "Widget"


def test_the_old_prefix_watches_too(api: Api, space: Space, two: dict[str, str], name: str):
    path = f"/apis/{space.group}/v1/watch/namespaces/{space.namespace}/widgets"
    stream = api.watch(path, 2, **{**two, "watch": "0"})
    assert sorted(stream.changes) == [f"ADDED:{name}-a", f"ADDED:{name}-b"]


def test_who_leaves_the_selection_is_deleted_as_it_was(api: Api, space: Space, name: str):
    rv, path = now(api, space), f"{space.widgets}/{name}"
    api.post(space.widgets, space.widget(name))
    for labels in ({"case": name}, {"case": f"{name}-x"}):
        last = api.merge(path, {"metadata": {"labels": labels}})
    api.delete(path)
    stream = api.watch(space.widgets, resourceVersion=rv, labelSelector=f"case={name}")
    assert stream.changes == [f"ADDED:{name}", f"DELETED:{name}"]
    assert stream.metas[1]["labels"] == {"case": name}
    assert stream.metas[1]["resourceVersion"] == last.rv


def test_the_last_finalizer_is_still_seen_in_the_end(api: Api, space: Space, name: str):
    path = f"{space.widgets}/{name}"
    created = api.post(space.widgets, space.widget(name, {"finalizers": ["example.com/f"]}))
    api.delete(path)
    api.merge(path, {"metadata": {"finalizers": None}})
    stream = api.watch(space.widgets, 2, resourceVersion=created.rv, **only(name))
    assert stream.changes == [f"MODIFIED:{name}", f"DELETED:{name}"]
    assert [meta["finalizers"] for meta in stream.metas] == [["example.com/f"]] * 2
    assert [meta["generation"] for meta in stream.metas] == [2, 2]


def test_a_version_serves_its_own_objects(api: Api, space: Space, two: dict[str, str]):
    stream = api.watch(space.betas, 2, **two)
    assert {e["object"]["apiVersion"] for e in stream.events} == {f"{space.group}/v1beta1"}


def test_too_old_a_version_is_an_error_in_the_stream(api: Api, space: Space):
    stream = api.watch(space.widgets, resourceVersion="1")
    assert (stream.status, stream.ended) == (200, True)
    (event,) = stream.events
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"].startswith("too old resource version: 1 (")


@pytest.mark.emulator
def test_a_watch_behind_the_compaction_is_too_old(api: Api, space: Space, name: str):
    rv = now(api, space)
    api.post(space.widgets, space.widget(name))
    api.compact()
    assert api.watch(space.widgets, resourceVersion=rv).events[0]["type"] == "ERROR"


def test_a_version_that_is_none_is_refused(api: Api, space: Space):
    assert api.get(space.widgets, watch="1", resourceVersion="abc").status in {400, 500}


def test_a_future_version_is_silence_and_what_is_older_is_lost(api: Api, space: Space, name: str):
    future = str(int(now(api, space)) + 1_000_000)
    with api.watching(space.widgets, resourceVersion=future, timeoutSeconds="1") as events:
        api.post(space.widgets, space.widget(name))
        assert list(events) == []


@pytest.mark.patient
def test_a_watch_ends_cleanly_at_its_time(api: Api, space: Space):
    stream = api.watch(space.widgets, 0, 5, resourceVersion=now(api, space), timeoutSeconds="2")
    assert (stream.events, stream.ended) == ([], True)


# bookmarks --------------------------------------------------------------------------------------


def test_a_bookmark_has_a_version_and_nothing_else(api: Api, space: Space, name: str):
    rv = now(api, space)
    options = {"resourceVersion": rv, "allowWatchBookmarks": "true", "timeoutSeconds": "10"}
    with api.watching(space.widgets, labelSelector=f"case={name}", **options) as events:
        api.post(space.widgets, space.widget(name))  # not selected, but it moves the version
        event = next(events)
    assert event["type"] == "BOOKMARK"
    assert event["object"].keys() >= {"kind", "apiVersion", "metadata"}
    meta = {k: v for k, v in event["object"]["metadata"].items() if v is not None}
    assert meta.keys() == {"resourceVersion"}
    assert int(meta["resourceVersion"]) >= int(rv)


def test_nobody_gets_bookmarks_unasked(api: Api, space: Space, name: str):
    rv = now(api, space)
    assert api.watch(space.widgets, resourceVersion=rv, **only(name)).events == []


INITIAL: dict[str, Any] = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


@pytest.mark.since("1.32")
def test_a_watch_list_marks_the_end_of_what_there_is(
    api: Api, space: Space, two: dict[str, str], name: str
):
    stream = api.watch(space.widgets, 3, allowWatchBookmarks="true", **INITIAL, **two)
    *added, last = stream.events
    assert sorted(e["object"]["metadata"]["name"] for e in added) == [f"{name}-a", f"{name}-b"]
    assert last["type"] == "BOOKMARK"
    assert last["object"]["metadata"]["annotations"] == {NAME_OF_INITIAL_END: "true"}


@pytest.mark.since("1.32")
def test_an_empty_watch_list_ends_at_once(api: Api, space: Space):
    options = {"allowWatchBookmarks": "true", "labelSelector": "none=x"}
    (event,) = api.watch(space.widgets, 1, **INITIAL, **options).events
    assert event["object"]["metadata"]["annotations"] == {NAME_OF_INITIAL_END: "true"}


@pytest.mark.since("1.32")
def test_a_watch_list_without_bookmarks_has_no_mark(api: Api, space: Space, two: dict[str, str]):
    stream = api.watch(space.widgets, **INITIAL, **two)
    assert [e["type"] for e in stream.events] == ["ADDED", "ADDED"]


@pytest.mark.since("1.32")
def test_a_watch_list_needs_its_match(api: Api, space: Space):
    reply = api.get(space.widgets, watch="1", sendInitialEvents="true")
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("resourceVersionMatch", "FieldValueForbidden")]


# forms ------------------------------------------------------------------------------------------


def test_each_event_of_a_table_watch_is_a_table(api: Api, space: Space, two: dict[str, str]):
    stream = api.watch(space.widgets, 2, accept=TABLE, **two)
    assert {e["object"]["kind"] for e in stream.events} == {"Table"}
    first, second = (e["object"] for e in stream.events)
    assert [c["name"] for c in first["columnDefinitions"]] == ["Name", "Size"]
    assert [row["cells"][1] for row in first["rows"] + second["rows"]] == [3, 3]


@pytest.mark.since("1.30")
def test_metadata_alone_can_be_watched(api: Api, space: Space, two: dict[str, str]):
    stream = api.watch(space.widgets, 2, accept=PARTIAL, **two)
    assert {e["object"]["kind"] for e in stream.events} == {"PartialObjectMetadata"}
    assert all("spec" not in e["object"] for e in stream.events)
