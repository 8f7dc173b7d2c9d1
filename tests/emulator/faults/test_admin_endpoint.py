"""The admin endpoint and its client, over HTTP."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.support.fault_rig import FaultRig, read_line
from fleetbus_emulator.apiserver import (
    Abort,
    Action,
    Compact,
    CutAnswer,
    CutWatch,
    Delay,
    Drip,
    DropEvents,
    EndWatch,
    Expire,
    Fail,
    Faults,
    FieldError,
    Garble,
    GroupDown,
    Hang,
    HideBookmarks,
    LagWatch,
    PartialList,
    Partition,
    StaleList,
    StallWatch,
)
from fleetbus_emulator.apiserver.admin import AdminClient, AdminError, serve_admin
from fleetbus_emulator.apiserver.faults.documents import (
    ACTION_FIELDS,
    ACTIONS,
    RULE_FIELDS,
    action_from_json,
    camel,
    from_duration,
    json_from_words,
    to_duration,
)
from support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

MOMENT = timedelta(milliseconds=1500)
ONE_OF_EACH: list[Action] = [
    Fail(429, reason="Busy", message="later", retry_after=timedelta(seconds=2)),
    GroupDown(),
    Delay(MOMENT, after_commit=True),
    Hang(after_commit=True),
    Abort(after_commit=True, reset=True),
    CutAnswer(share=0.25, reset=True),
    Drip(size=3, pause=MOMENT),
    Garble("body", after_events=2),
    Compact(),
    Expire("stream", after_events=4),
    StaleList(12),
    PartialList(share=0.5),
    CutWatch(after_events=5, mid_line=False, reset=True),
    EndWatch(after_events=6, mid_line=True),
    StallWatch(after_events=7),
    HideBookmarks(initial_end=True),
    LagWatch(MOMENT),
    DropEvents("DELETED"),
]


class AdminRig(FaultRig):
    """A served cluster with the endpoint and its client."""

    def __init__(self, rig: FaultRig, url: str, admin: AdminClient) -> None:
        super().__init__(rig.cluster, rig.servers, rig.session)
        self.admin_url = url
        self.admin = admin

    async def ask(
        self, method: str, path: str, body: Any = b"", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        url = self.admin_url + path
        async with self.session.request(method, url, data=data, headers=headers) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def rig(faulty: FaultRig) -> AsyncGenerator[AdminRig]:
    async with serve_admin(faulty.servers) as url, AdminClient(url) as admin:
        yield AdminRig(faulty, url, admin)


# rules ------------------------------------------------------------------------------------------


def test_each_action_is_tried():
    assert {type(action) for action in ONE_OF_EACH} == set(ACTIONS.values())


def test_the_documentation_has_each_action_with_its_fields():
    page = (Path(__file__).parents[3] / "docs" / "emulator.md").read_text(encoding="utf-8")
    section = page.partition("\n## Faults\n")[2].partition("\n## ")[0]
    for action, fields in ACTION_FIELDS.items():
        (row,) = [line for line in section.splitlines() if line.startswith(f"| `{action}` |")]
        assert [field for field in fields if f"`{field}`" not in row] == []
    assert [field for field in RULE_FIELDS if f"`{field}`" not in page] == []


async def test_every_rule_goes_out_as_it_came_in(rig: AdminRig):
    for action in ONE_OF_EACH:
        added = await rig.admin.add_fault(
            "alpha",
            action,
            verb="read",
            group="core",
            resource="pods",
            namespace="default",
            name="a",
            subresource="status",
            user_agent="kubectl",
            token="t",
            count=3,
            skip=2,
            probability=0.5,
        )
        rule = rig.faults.get(added.id)
        assert rule is not None
        assert (rule.action, rule.match) == (action, added.match) == (added.action, rule.match)
        assert (rule.count, rule.skip, rule.probability) == (3, 2, 0.5)
        assert (rule.match.user_agent, rule.match.token) == ("kubectl", "t")
    assert [rule.action for rule in await rig.admin.faults("alpha")] == ONE_OF_EACH


async def test_a_rule_tells_its_hits_and_can_be_removed(rig: AdminRig):
    rule = await rig.admin.add_fault("alpha", Fail(503), verb="list", nth=2)
    assert [(await rig.get())[0] for _ in range(3)] == [200, 503, 200]
    (spent,) = await rig.admin.faults("alpha")
    assert (spent.id, spent.hits, spent.active) == (rule.id, 1, False)
    status, shown_rule = await rig.ask("GET", f"/clusters/alpha/faults/{rule.id}")
    assert (status, shown_rule["action"], shown_rule["status"]) == (200, "fail", 503)
    assert (await rig.admin.remove_fault("alpha", rule.id)).active is False
    assert await rig.admin.faults("alpha") == []
    for _ in range(2):
        await rig.admin.add_fault("alpha", Hang())
    assert (await rig.admin.clear_faults("alpha")).faults == 0
    assert (await rig.get())[0] == 200


WRONG_RULES: list[tuple[dict[str, Any], str]] = [
    ({}, "action"),
    ({"action": "explode"}, "action"),
    ({"action": ["fail"]}, "action"),
    ({"action": "fail"}, "status"),
    ({"action": "fail", "status": "500"}, "status"),
    ({"action": "fail", "status": True}, "status"),
    ({"action": "fail", "status": 200}, "status"),
    ({"action": "fail", "status": 500, "retryAfter": 1}, "retryAfter"),
    ({"action": "fail", "status": 500, "retryAfter": "soon"}, "retryAfter"),
    ({"action": "fail", "status": 500, "stauts": 1}, "stauts"),
    ({"action": "delay", "duration": "99999999999999h"}, "duration"),
    ({"action": "delay", "duration": "0s"}, "duration"),
    ({"action": "cut-watch", "afterEvents": -1}, "afterEvents"),
    ({"action": "cut-watch", "midLine": "yes"}, "midLine"),
    ({"action": "cut-answer", "share": 1}, "share"),
    ({"action": "expire", "where": "nowhere"}, "where"),
    ({"action": "stale-list", "resourceVersion": "latest"}, "resourceVersion"),
    ({"action": "group-down"}, "group"),
    ({"action": "hang", "verb": "lst"}, "verb"),
    ({"action": "hang", "name": 3}, "name"),
    ({"action": "hang", "resource": ""}, "resource"),
    ({"action": "hang", "userAgent": []}, "userAgent"),
    ({"action": "hang", "count": 0}, "count"),
    ({"action": "hang", "nth": 1, "skip": 1}, "nth"),
    ({"action": "hang", "probability": 2}, "probability"),
]


async def test_a_wrong_rule_is_400_and_names_the_field(rig: AdminRig):
    for document, field in WRONG_RULES:
        status, refused = await rig.ask("POST", "/clusters/alpha/faults", orjson.dumps(document))
        assert (document, status, refused["field"]) == (document, 400, field)
        assert refused["error"].startswith(f"{field}: ")
    assert rig.faults.list() == []


# Short, because a long text is refused like a short one.
VALUES: list[Any] = [None, True, 0, -1, 3, 0.5, 1e300, "", "1s", "500", [], {}]
FIELDS = ["status", "duration", "where", "share", "size", "pause", "afterEvents", *RULE_FIELDS]


@given(
    action=st.sampled_from([*ACTIONS, "nonsense"]),
    document=st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(VALUES), max_size=4),
)
def test_any_document_is_a_rule_or_names_its_wrong_field(action: str, document: dict[str, Any]):
    try:
        read, arguments = action_from_json({"action": action, **document})
        no_watches: list[object] = []
        faults = Faults(
            Random(1),
            present_rv=lambda: 7,
            added=no_watches.append,
            removed=no_watches.clear,
        )
        faults.add(read, **arguments)
    except FieldError as error:
        named = camel(error.field)
    else:
        named = "action"
        assert type(read) is ACTIONS[action]
    # What is missing is named, too.
    assert named in {"action", "status", "duration", "where", "group", *document}


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("1.5s", 1.5), ("2m", 120), ("1h", 3600)]
)
def test_durations_are_texts_with_a_unit(text: str, seconds: float):
    duration = to_duration(text)
    assert duration == timedelta(seconds=seconds)
    assert to_duration(from_duration(duration)) == duration


def test_words_become_the_document_they_stand_for():
    words = ["status=429", "retryAfter=1s", "name=123", "probability=0.5", "count=2"]
    assert json_from_words("fail", words) == {
        "action": "fail",
        "status": 429,
        "retryAfter": "1s",
        "name": "123",
        "probability": 0.5,
        "count": 2,
    }
    assert json_from_words("cut-watch", ["midLine=false"])["midLine"] is False


@pytest.mark.parametrize(
    ("words", "field"),
    [(["status"], "status"), (["sttus=1"], "sttus"), (["status=many"], "status")],
)
def test_a_wrong_word_is_named(words: list[str], field: str):
    with pytest.raises(FieldError) as refused:
        action_from_json(json_from_words("fail", words))
    assert refused.value.field == field


# the whole cluster ------------------------------------------------------------------------------


async def test_clusters_tell_who_they_are_and_how_they_do(rig: AdminRig):
    (info,) = await rig.admin.clusters()
    assert (info.name, info.url, info.uid) == ("alpha", rig.url, rig.cluster.uid)
    assert info.resource_version == rig.cluster.resource_version
    assert (info.listening, info.partition, info.open_watches) == (True, None, 0)
    await rig.admin.add_fault("alpha", Fail(500), verb="delete")
    async with rig.watch():
        parted = await rig.admin.partition("alpha", Partition.LOSE_REQUESTS)
    assert (parted.partition, parted.open_watches) == (Partition.LOSE_REQUESTS, 1)
    assert (parted.faults, parted.requests) == (1, 1)
    assert parted.commits == rig.cluster.truth.last
    assert (await rig.admin.heal("alpha")).partition is None
    assert await rig.admin.cluster("alpha") == await rig.admin.start("alpha")


async def test_a_cluster_stops_and_starts(rig: AdminRig):
    assert (await rig.admin.stop("alpha")).listening is False
    with pytest.raises(aiohttp.ClientConnectorError):
        await rig.get()
    assert (await rig.admin.start("alpha")).listening is True
    assert (await rig.get())[0] == 200


async def test_compaction_takes_the_body_that_the_probes_send_and_spares_watches(rig: AdminRig):
    for name in ("a", "b", "c"):
        rig.add(name)
    _, first = await rig.get(limit="1")
    rig.add("d")
    page = {"limit": "1", "continue": first["metadata"]["continue"]}
    start = first["metadata"]["resourceVersion"]
    assert (await rig.get(**page))[0] == 200
    body = orjson.dumps({"resourceVersion": str(rig.cluster.resource_version)})
    assert (await rig.ask("POST", "/clusters/alpha/compact", body))[0] == 200
    assert (await rig.get(**page))[0] == 410
    async with rig.watch(resourceVersion=start) as stream:
        assert (await read_line(stream)).name == "d"


async def test_compaction_can_make_watches_too_old_up_to_a_revision(rig: AdminRig):
    rig.add("a")
    middle = rig.cluster.resource_version
    rig.add("b")
    await rig.admin.compact("alpha", middle)
    async with rig.watch(resourceVersion=str(middle)) as stream:
        assert (await read_line(stream)).name == "b"
    await rig.admin.compact("alpha")
    async with rig.watch(resourceVersion=str(middle)) as stream:
        assert (await read_line(stream)).object["code"] == 410


async def test_a_cluster_is_rolled_back_as_far_as_its_log_reaches(rig: AdminRig):
    past = rig.cluster.resource_version
    rig.add("a")
    assert (await rig.admin.roll_back("alpha", past)).resource_version == past
    assert not rig.has("a")
    with pytest.raises(AdminError, match="cannot roll back to 1") as refused:
        await rig.admin.roll_back("alpha", 1)
    assert (refused.value.status, refused.value.field) == (400, "resourceVersion")


async def test_a_cluster_becomes_another(rig: AdminRig):
    assert (await rig.admin.swap_uid("alpha", "other")).uid == "other"
    assert (await rig.admin.swap_uid("alpha")).uid not in ("other", "")
    rig.cluster.delete("v1/namespaces", None, "kube-system")
    namespace = rig.cluster.get("v1/namespaces", None, "kube-system")
    assert namespace is not None
    del namespace["spec"]["finalizers"]
    rig.cluster.update("v1/namespaces", namespace, subresource="finalize")
    with pytest.raises(AdminError, match="no namespace kube-system") as refused:
        await rig.admin.swap_uid("alpha")
    assert refused.value.status == 409


BAD_INPUT: list[tuple[str, str, Any, int, str | None]] = [
    ("POST", "/clusters/alpha/compact", {"resourceVersion": "soon"}, 400, "resourceVersion"),
    (
        "POST",
        "/clusters/alpha/compact",
        {"resourceVersion": "9" * 30},
        400,
        "resourceVersion",
    ),
    ("POST", "/clusters/alpha/compact", {"rv": "1"}, 400, "rv"),
    ("POST", "/clusters/alpha/compact", {"watches": "no"}, 400, "watches"),
    ("POST", "/clusters/alpha/roll-back", {}, 400, "resourceVersion"),
    ("POST", "/clusters/alpha/roll-back", {"resourceVersion": True}, 400, "resourceVersion"),
    ("POST", "/clusters/alpha/swap-uid", {"uid": ""}, 400, "uid"),
    ("POST", "/clusters/alpha/partition", {"how": "sideways"}, 400, "how"),
    ("POST", "/clusters/alpha/partition", {"how": []}, 400, "how"),
    ("POST", "/clusters/alpha/faults", b"{", 400, None),
    ("POST", "/clusters/alpha/faults", b"[]", 400, None),
    ("POST", "/clusters/alpha/heal", b"\xff", 400, None),
    ("POST", "/clusters/alpha/heal", {"how": "hang"}, 400, "how"),
    ("POST", "/clusters/alpha/start", {"x": 1}, 400, "x"),
    ("POST", "/clusters/alpha/stop", b"{", 400, None),
    ("GET", "/clusters/alpha/requests?since=-1", b"", 400, "since"),
    ("GET", "/clusters/alpha/requests?limit=1000000", b"", 400, "limit"),
    ("GET", "/clusters/alpha/truth?since=x", b"", 400, "since"),
    ("GET", "/clusters/alpha/truth?follow=maybe", b"", 400, "follow"),
    ("GET", "/clusters/beta", b"", 404, None),
    ("POST", "/clusters/beta/faults", {"action": "hang"}, 404, None),
    ("DELETE", "/clusters/alpha/faults/7", b"", 404, None),
    ("DELETE", "/clusters/alpha/faults/x", b"", 404, None),
    ("GET", "/nonsense", b"", 404, None),
    ("PUT", "/clusters", b"", 405, None),
]


async def test_bad_input_is_a_clear_answer_in_json_and_changes_nothing(rig: AdminRig):
    before = await rig.admin.cluster("alpha")
    for method, path, body, status, field in BAD_INPUT:
        answered, document = await rig.ask(method, path, body)
        question = (method, path, body)
        assert (question, answered, document.get("field")) == (question, status, field)
        assert document["error"]
        assert "Traceback" not in document["error"]
    assert await rig.admin.cluster("alpha") == before


async def test_pages_in_a_browser_may_ask_nothing(rig: AdminRig):
    headers = {"Origin": "http://evil.example"}
    assert (await rig.ask("POST", "/clusters/alpha/stop", **headers))[0] == 403
    rebound = {"Host": "evil.example:80"}
    assert (await rig.ask("GET", "/clusters", **rebound))[0] == 403
    local = {"Host": "localhost:80"}
    assert (await rig.ask("GET", "/clusters", **local))[0] == 200
    assert rig.servers.is_listening("alpha")


# what happened ----------------------------------------------------------------------------------


async def test_the_log_of_requests_is_read_on_from_a_number(rig: AdminRig):
    for name in ("a", "b"):
        await rig.post(name)
    rule = await rig.admin.add_fault("alpha", Fail(500), count=1)
    await rig.get()
    page = await rig.admin.requests("alpha", since=1)
    assert page.oldest == 1
    assert [(r.number, r.verb, r.status, r.faults) for r in page.requests] == [
        (2, "create", 201, ()),
        (3, "list", 500, (rule.id,)),
    ]
    assert page.requests == list(rig.cluster.requests)[1:]
    assert (await rig.admin.requests("alpha", since=3)).requests == []
    assert len((await rig.admin.requests("alpha", limit=1)).requests) == 1


async def test_open_watches_are_counted_with_what_they_sent(rig: AdminRig):
    async with rig.watch() as stream:
        rig.add("a")
        await read_line(stream)
        await rig.admin.add_fault("alpha", StallWatch(), verb="watch")
        rig.add("b")
        (open_watch,) = await rig.admin.watches("alpha")
    assert (open_watch.resource, open_watch.namespace, open_watch.sent, open_watch.behind) == (
        "configmaps",
        "default",
        1,
        1,
    )
    assert "aiohttp" in open_watch.user_agent
    await eventually(lambda: rig.cluster.open_watches == 0)
    assert await rig.admin.watches("alpha") == []


async def test_the_ground_truth_streams_to_its_end_or_for_ever(rig: AdminRig):
    since = rig.cluster.truth.last
    rig.add("a")
    seen = [commit async for commit in rig.admin.truth("alpha")]
    assert seen == list(rig.cluster.history)
    async with aclosing(rig.admin.truth("alpha", since=since, follow=True)) as commits:
        assert (await anext(commits)).name == "a"
        later = asyncio.ensure_future(anext(commits))
        await rig.post("b")
        found = await later
    assert (found.name, found.type, found.number) == ("b", "ADDED", since + 2)
    assert "aiohttp" in found.agent
    await eventually(lambda: not rig.cluster.truth.listeners)


async def test_a_forgotten_part_of_the_ground_truth_is_410(rig: AdminRig):
    truth = rig.cluster.truth
    while len(truth.entries) > 1:
        truth.entries.popleft()
    with pytest.raises(AdminError, match="forgotten") as refused:
        _ = [commit async for commit in rig.admin.truth("alpha")]
    assert (refused.value.status, refused.value.more) == (410, {"oldest": truth.last})


async def test_the_endpoint_ends_with_streams_that_are_followed(faulty: FaultRig):
    began = asyncio.get_running_loop().time()
    serving = serve_admin(faulty.servers)
    url = await serving.__aenter__()
    async with AdminClient(url) as admin:
        commits = admin.truth("alpha", follow=True)
        await anext(commits)
        await serving.__aexit__(None, None, None)
        with pytest.raises(aiohttp.ClientError):
            _ = [commit async for commit in commits]
    assert asyncio.get_running_loop().time() - began < 2


def test_the_client_says_when_it_is_used_outside_of_its_context():
    with pytest.raises(RuntimeError, match="outside of its context"):
        asyncio.run(AdminClient("http://127.0.0.1:1").clusters())
