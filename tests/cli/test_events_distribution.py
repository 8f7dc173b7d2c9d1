"""`fleetbus events --distribution` as a person calls it, on a real nats-server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import pytest

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_distribution
from fleetbus_cli.main import main
from fleetbus_devfleet.processes.servers import nats_server_blocking
from fleetbus_proto.distribution import (
    AffectedObject,
    DistributionEvent,
    encode_distribution_event,
)
from fleetbus_proto.subjects import DistributionVerb, distribution_subject
from support.processes.in_process_commands import status_of
from support.wire.samples import DISTRIBUTION

APPLIED = msgspec.structs.replace(
    DISTRIBUTION,
    event=DistributionVerb.APPLIED,
    cluster="us1",
    objects=[AffectedObject(object="ConfigMap shop/a")],
    more=3,
    reason="Applied",
    message="",
)
HELD = msgspec.structs.replace(
    DISTRIBUTION, event=DistributionVerb.HELD, cluster="", name="other", message="2 deletions"
)


def subject_of(event: DistributionEvent) -> str:
    return distribution_subject(event.namespace, event.name, event.cluster, event.event)


async def publish(url: str, *events: DistributionEvent) -> None:
    async with connected(url, name="writer") as bus:
        await ensure_distribution(bus)
        for event in events:
            await bus.request(subject_of(event), encode_distribution_event(event))


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generator[Callable[..., tuple[int, str, str]]]:
    """The command: exit status, output, error."""
    with nats_server_blocking(store_dir=tmp_path) as server:
        asyncio.run(publish(server.url, DISTRIBUTION, APPLIED, HELD))
        monkeypatch.setenv("FLEETBUS_NATS_URL", server.url)

        def call_one(*arguments: str) -> tuple[int, str, str]:
            capsys.readouterr()
            monkeypatch.setattr(sys, "argv", ["fleetbus", "events", "--distribution", *arguments])
            status = status_of(main)
            printed = capsys.readouterr()
            return status, printed.out, printed.err

        yield call_one


def test_what_became_of_multiclusterresources_is_shown_and_filtered(
    call: Callable[..., tuple[int, str, str]],
):
    status, out, _ = call()
    assert status == 0
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert rows == [
        "TIME RESOURCE CLUSTER EVENT MESSAGE",
        f"12:00:00.123 shop/web eu1 corrected {DISTRIBUTION.message}",
        "12:00:00.123 shop/web us1 applied ConfigMap shop/a and 3 more",
        "12:00:00.123 shop/other - held 2 deletions",
    ]
    _, out, _ = call("-n", "shop", "--name", "web", "--verb", "applied", "-o", "json")
    assert (json.loads(out)["cluster"], json.loads(out)["more"]) == ("us1", 3)
    assert call("--cluster", "mars")[2] == "No events found.\n"
    for wrong in (["pods"], ["--verb", "added"], ["--cluster", "a b"]):
        status, _, err = call(*wrong)
        assert (status, err.count("\n")) == (2, 1)
