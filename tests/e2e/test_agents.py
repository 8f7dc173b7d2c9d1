"""The checks of clusters behind agents find what should not be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.agent_member import check_audit
from e2e.agent_plane import audit_failures

Event = dict[str, Any]
AGENT = "system:serviceaccount:fleetbus-agent:fleetbus-agent"
DEPLOYER = "system:serviceaccount:shop:deployer"
HUB_POD, MEMBER_POD = "10.244.0.7", "10.244.128.3"


def event(user_agent: str, user: str = AGENT, credential: str = "t1", **fields: Any) -> Event:
    extra = {"authentication.kubernetes.io/credential-id": [credential]}
    return {
        "stage": "ResponseComplete",
        "verb": "patch",
        "requestURI": "/api/v1/namespaces/default/configmaps/deployed",
        "objectRef": {"name": "deployed"},
        "userAgent": user_agent,
        "user": {"username": user, "extra": extra},
        "sourceIPs": [MEMBER_POD],
        **fields,
    }


WATCH = event("fleetbus-watcher/1", credential="t2")
OWN = event("fleetbus-agent")
WRITE = event("fleetbus-distributor/1")
ACTED = event("fleetbus-distributor/1", impersonatedUser={"username": DEPLOYER})
ADMIN = event("kubectl", "e2e-admin")
GOOD = [WATCH, OWN, WRITE, ACTED, ADMIN]


def audited(path: Path, events: list[Event]) -> tuple[dict[str, int], list[str]]:
    path.write_text("".join(json.dumps(each) + "\n" for each in events))
    return audit_failures(path)


def test_requests_that_came_by_another_way_are_found_in_the_audit_log(tmp_path: Path):
    log = tmp_path / "audit.log"
    assert audited(log, GOOD) == ({"by_agent": 2, "impersonated": 1}, [])
    assert audited(log, [WATCH, OWN]) == ({"by_agent": 0, "impersonated": 0}, [])
    _, (wrong,) = audited(log, [*GOOD, event("fleetbus-distributor/1", "e2e-admin")])
    assert "came as e2e-admin" in wrong
    _, (wrong,) = audited(log, [*GOOD, event("fleetbus-reconciler/1", credential="t2")])
    assert "another token" in wrong
    older = [each | {"user": {"username": each["user"]["username"]}} for each in GOOD]
    log.write_text("".join(json.dumps(each) + "\n" for each in older))
    assert audit_failures(log, names_tokens=False) == ({"by_agent": 2, "impersonated": 1}, [])


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([*GOOD, {**WRITE, "sourceIPs": [HUB_POD]}], "reached ap1"),
        ([*GOOD, event("fleetbus-x", "system:serviceaccount:fleetbus:fleetbus-pool")], "accounts"),
        ([WATCH, WRITE, ADMIN], "nobody acted"),
        ([WATCH, {**ACTED, "objectRef": {"name": "other"}}], "written as deployer"),
    ],
    ids=["address", "account", "nobody acted", "another object"],
)
def test_requests_of_the_hubs_pods_are_found_by_their_address(events: list[Event], message: str):
    direct = [{**WRITE, "sourceIPs": [HUB_POD]}]
    check_audit(GOOD, direct)
    with pytest.raises(AssertionError, match=message):
        check_audit(events, direct)
    with pytest.raises(AssertionError, match="not recognized"):
        check_audit(GOOD, GOOD)
