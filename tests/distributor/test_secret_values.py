import base64
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleetbus_emulator.apiserver import Fail
from support.rigs.distributor import Rig

T1, T2, T4 = ({"name": name} for name in ("t1", "t2", "t4"))
EVERYWHERE = {"clusters": [T1, T2, T4]}
CANARY = "canary-4711"


def secret() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"password": base64.b64encode(CANARY.encode()).decode()},
    }


def output_of(rig: Rig, logs: object, output: pytest.CaptureFixture[str]) -> str:
    """Everything that people read: conditions, Events, logs."""
    events = rig.hub.list("v1/events", "default")
    return f"{rig.resource()['status']} {events} {logs} {output.readouterr()}"


async def test_d14_a_secret_never_reaches_a_condition_an_event_or_a_log(
    rig: Rig, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    rig.clusters["t2"].faults.add(
        Fail(403, message=f'admission webhook denied: Invalid value: "{CANARY}"'), verb="patch"
    )
    rig.create(template=secret(), placement=EVERYWHERE)
    with capture_logs() as logs:
        await rig.reconcile()
    assert rig.states()["t2"] == "Failed/Forbidden"
    assert "admission webhook denied" in rig.entry("t2")["message"]
    assert CANARY not in output_of(rig, [logs, caplog.text], capfd)


@pytest.mark.parametrize("going", ["pruned", "deleted with its owner"])
@pytest.mark.parametrize("verb", ["get", "delete"])
async def test_d14_a_secret_that_may_not_be_deleted_reaches_nobody(
    rig: Rig,
    going: str,
    verb: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
):
    rig.create(template=secret(), placement=EVERYWHERE)
    await rig.reconcile()
    encoded = secret()["data"]["password"]
    message = f"admission webhook denied: {CANARY} or {encoded} is in use"
    rig.clusters["t2"].faults.add(Fail(403, message=message), verb=verb, resource="secrets")
    if going == "pruned":
        rig.edit(placement={"clusters": [T1, T4]})
    else:
        rig.delete()
    with capture_logs() as logs:
        await rig.reconcile()
    assert rig.states()["t2"] == "Failed/DeleteFailed"
    everything = output_of(rig, [logs, caplog.text], capfd)
    assert CANARY not in everything
    assert encoded not in everything
