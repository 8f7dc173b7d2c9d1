"""`POST /v1/join` and `DELETE /v1/unjoin`: who may, and what they write (rule A7, T20)."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from support.eventually import eventually
from support.rigs.membership import CLUSTERS, NAMESPACE, RECORDS, SECRETS
from support.rigs.secured_api import OWN_TOKEN, grant, rule

if TYPE_CHECKING:
    from support.rigs.membership import MembershipRig


async def test_t20_a_cluster_joins_and_leaves_with_the_rights_of_the_caller(rig: MembershipRig):
    ann, hub = rig.joiner("ann"), rig.api.hub
    joined = await rig.join(ann, "c3", rig.kubeconfig("eu1"))
    assert (joined.status_code, joined.json()) == (200, {"res": "join cluster successful"})
    cluster_object = hub.get(CLUSTERS, None, "c3")
    assert cluster_object is not None
    assert not cluster_object["spec"]["insecureSkipTLSVerify"]
    secret = hub.get(SECRETS, NAMESPACE, "c3-kubeconfig")
    assert secret is not None
    kubeconfig = json.loads(base64.b64decode(secret["data"]["kubeconfig"]))
    assert kubeconfig["users"][0]["user"] == {"token": OWN_TOKEN}
    left = await rig.unjoin(ann, "c3")
    assert (left.status_code, left.json()) == (200, {"res": "unjoin cluster successful"})
    assert hub.get(CLUSTERS, None, "c3") is None
    assert hub.get(SECRETS, NAMESPACE, "c3-kubeconfig") is None
    assert hub.get(RECORDS, NAMESPACE, "left-c3") is not None


async def test_t20_insecure_is_off_unless_the_caller_wants_it(rig: MembershipRig):
    ann = rig.joiner("ann")
    for insecure, name in (("true", "c3"), ("", "c4")):
        place = "eu1" if insecure else "us1"
        answer = await rig.join(ann, name, rig.kubeconfig(place), insecure=insecure)
        assert answer.status_code == 200, answer.text
        cluster_object = rig.api.hub.get(CLUSTERS, None, name) or {}
        assert cluster_object["spec"]["insecureSkipTLSVerify"] is bool(insecure)


@pytest.mark.parametrize("lacking", ["clusters", "secrets", "records"])
async def test_a7_without_one_of_the_rights_it_is_403_and_nothing_is_written(
    rig: MembershipRig, lacking: str
):
    ann, eve = rig.joiner("ann"), rig.joiner("eve", without=lacking)
    await rig.join(ann, "c3", rig.kubeconfig("us1"))
    before = rig.written()
    for answer in (
        await rig.join(eve, "c4", rig.kubeconfig("eu1")),
        await rig.join(eve, "c3", rig.kubeconfig("eu1")),
        await rig.unjoin(eve, "c3"),
        await rig.unjoin(eve, "c4") if lacking == "clusters" else None,
    ):
        if answer is not None:
            assert answer.status_code == 403, answer.text
            assert "you lack rights on the hub: " in answer.json()["error"]
    assert rig.written() == before


async def test_a7_rights_to_read_the_whole_fleet_are_none_to_join(rig: MembershipRig):
    reader = rig.api.user("reader")
    grant(rig.api.hub, "reader", rule("get list", "fleetbus.dev", "clusters", "clusters/pods"))
    answer = await rig.join(reader, "c4", rig.kubeconfig("eu1"))
    assert answer.status_code == 403
    # The token is good for this API only: it is the hub's API server that has to accept it.
    assert "a token for both" in answer.json()["error"]
    assert rig.written() == []
    assert (await rig.unjoin(reader, "eu1")).status_code == 403


async def test_a7_the_account_of_the_query_api_writes_nothing_itself(rig: MembershipRig):
    """A 401 for the caller must not lead back to the credentials of our own kubeconfig."""
    grant(
        rig.api.hub, "query-api", rule("get list create delete patch", "fleetbus.dev", "clusters")
    )
    grant(rig.api.hub, "query-api", rule("get create delete patch", "", "secrets", "configmaps"))
    ann = rig.api.user("ann")  # not for the audience of the hub's API server
    assert (await rig.join(ann, "c3", rig.kubeconfig("eu1"))).status_code == 403
    assert (await rig.unjoin(ann, "c3")).status_code == 403
    assert rig.written() == []


async def test_t20_the_same_name_or_the_same_cluster_twice_is_409(rig: MembershipRig):
    ann = rig.joiner("ann")
    await rig.join(ann, "c3", rig.kubeconfig("eu1"))
    before = rig.written()
    same_name = await rig.join(ann, "c3", rig.kubeconfig("us1"))
    same_cluster = await rig.join(ann, "c4", rig.kubeconfig("eu1"))
    assert [same_name.status_code, same_cluster.status_code] == [409, 409]
    assert "taken" in same_name.json()["error"]
    assert "already in the fleet as 'c3'" in same_cluster.json()["error"]
    assert rig.written() == before


async def test_t20_the_hub_cannot_leave_and_who_is_not_there_is_404(rig: MembershipRig):
    ann = rig.joiner("ann")
    grant(rig.api.hub, "ann", rule("list", "", "secrets"), namespace=NAMESPACE)
    await rig.join(ann, "main", rig.kubeconfig("hub"))  # under another name
    for name in ("hub", "main"):
        answer = await rig.unjoin(ann, name)
        assert answer.status_code == 400
        assert "hub of the fleet" in answer.json()["error"]
    assert rig.api.hub.get(CLUSTERS, None, "main") is not None
    missing = await rig.unjoin(ann, "zz")
    assert (missing.status_code, "not in the fleet" in missing.json()["error"]) == (404, True)


async def test_a7_each_write_is_a_line_with_who_and_what_and_no_secret(rig: MembershipRig):
    ann, eve = rig.joiner("ann"), rig.api.user("eve")
    with capture_logs() as logs:
        await rig.join(ann, "c3", rig.kubeconfig("eu1"))
        await rig.unjoin(eve, "c3")
        await rig.unjoin(ann, "c3")
    lines = [each for each in logs if each["event"] == "api_request"]
    assert [(each["user"], each["decision"], each["rights"][0]) for each in lines] == [
        ("ann", "allowed", "create clusters c3"),
        ("eve", "denied", "delete clusters c3"),
        ("ann", "allowed", "delete clusters c3"),
    ]
    assert [each["log_level"] for each in lines] == ["info", "warning", "info"]
    done = [each["event"] for each in logs if each.get("cluster") == "c3"]
    assert done == ["cluster_joined", "cluster_unjoined"]
    assert OWN_TOKEN not in str(logs)
    assert ann not in str(logs)


async def test_a7_one_at_a_time_for_a_name(rig: MembershipRig):
    ann = rig.joiner("ann")
    await rig.api.servers.partition("eu1")
    joining = asyncio.create_task(rig.join(ann, "c3", rig.kubeconfig("eu1")))
    await eventually(
        lambda: any(each.path.endswith("/clusters/c3") for each in rig.api.hub.requests)
    )
    second = await rig.join(ann, "c3", rig.kubeconfig("us1"))
    assert (second.status_code, "just now" in second.json()["error"]) == (409, True)
    await rig.api.servers.heal("eu1")
    assert (await joining).status_code == 200
