"""Children that an API server refuses."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

import fleetbus
from fleetbus.children.policy import Child
from fleetbus.testing import ControllerTest, controller_test
from fleetbus_emulator.apiserver import Fail

Object = dict[str, Any]
MAPS = "v1/configmaps"
VALUE = "hunter2-canary"


def family() -> fleetbus.Children:
    """Each labelled ConfigMap of `a` has a child in `b`."""
    controller = fleetbus.Children(
        "maps", parents=MAPS, children=MAPS, parent_clusters=["a"], parent_selector="managed"
    )

    @controller.desired
    async def _desired(parent: Object, _cluster: str, _fleet: fleetbus.Fleet) -> list[Child]:
        obj: Object = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{parent['metadata']['name']}-child", "namespace": "default"},
            "data": {"password": VALUE},
        }
        return [Child("b", obj)]

    return controller


async def make_parent(t: ControllerTest, name: str) -> None:
    parent = {"metadata": {"name": name, "labels": {"managed": "yes"}}}
    t.clusters["a"].create(MAPS, parent, "default")
    await t.run_until_idle()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (422, f'data.password: Invalid value: "{VALUE}"'),
        (500, "failed to create typed patch object: .data.password: expected map"),
    ],
)
async def test_d9_d14_a_refused_child_leaves_others_alone_and_its_values_are_not_logged(
    status: int, message: str
) -> None:
    with capture_logs() as logs:
        async with controller_test(family()) as t:
            server: Any = t.clusters["b"]
            server.add_fault(Fail(status, message=message), verb="patch", name="p-child")
            await make_parent(t, "p")
            await make_parent(t, "q")
            assert t.clusters["b"].get(MAPS, "default", "q-child") is not None
    events = [line["event"] for line in logs]
    assert events.count("child_refused") == 1
    assert "child_unreachable" not in events
    assert VALUE not in str(logs)
