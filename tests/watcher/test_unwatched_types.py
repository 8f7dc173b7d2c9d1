"""Types that are not watched by default, and the advice how to watch them."""

from __future__ import annotations

import re

from fleetbus.kube.unwatched_types import DENIED, SECRETS, how_to_watch
from fleetbus_proto.resources import parse_resource_name
from fleetbus_watcher.settings import Selection
from support.eventually import eventually
from support.rigs.watcher import Rig
from support.rows import each_row


@each_row("key", [SECRETS, *DENIED])
def test_each_type_that_is_left_out_has_an_advice(key: str):
    group, _, plural = key.partition("/")
    name = plural if group == "core" else f"{plural}.{group}"
    assert "not watched by default" in how_to_watch(parse_resource_name(name))


def test_a_type_that_is_watched_has_none():
    for name in ("pods", "services", "apps/v1/deployments", "secrets.example.org"):
        assert how_to_watch(parse_resource_name(name)) == ""


async def test_the_advice_for_events_has_warnings_watched_beside_everything(rig: Rig):
    (entry,) = re.findall(r"\{.*?\}", how_to_watch(parse_resource_name("events")))
    for number, kind in enumerate(("Normal", "Warning")):
        event = {"metadata": {"name": f"e{number}"}, "type": kind, "reason": "Tried"}
        event["involvedObject"] = {"kind": "Pod", "name": "a", "namespace": "default"}
        rig.cluster.create("v1/events", event, "default")
    rig.write("a")
    rig.start(resources=(Selection(resource="*"), Selection.model_validate_json(entry)))
    await eventually(lambda: rig.ends("events"))
    assert [event.name for event in await rig.events("events")] == ["e1"]
    await eventually(rig.is_mirrored)
