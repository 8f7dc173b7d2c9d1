"""Pages of the past: what they hold in memory, and tokens that somebody has made up (A8, A9)."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus.history.states import PastStates
from fleetbus.process.clock import rfc3339
from fleetbus.snapshot import ListQuery, SnapshotReader
from fleetbus_query_api.history import steps
from fleetbus_query_api.history.past_token import PastPosition, write_past_token
from support.stores.recorded_past import pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus.run.current import ObjectRef
    from support.rigs.past_api import PastApi

EU1 = Source()
PATH = "/fleet/v1/resources/pods"


@pytest.fixture(autouse=True)
async def clusters(past_api: PastApi) -> None:
    await past_api.add_cluster("eu1", "core/pods")


async def test_a8_few_large_objects_of_the_past_are_read_at_a_time(
    past_api: PastApi, monkeypatch: pytest.MonkeyPatch
):
    """A step of 250 objects of 1 MiB was 250 MiB for each question, and as much of the present."""
    monkeypatch.setattr(steps, "_SMALL_BYTES", 1024**2 // 4)
    monkeypatch.setattr(steps, "_LARGE_BYTES", 1024**2)
    sizes: list[int] = []
    bounds: set[int | None] = set()
    at, list_page = PastStates.at, SnapshotReader.list

    async def count(self: PastStates, refs: Sequence[ObjectRef], time: Any) -> Any:
        sizes.append(len(refs))
        return await at(self, refs, time)

    async def note(self: SnapshotReader, query: ListQuery) -> Any:
        bounds.add(query.max_bytes)
        return await list_page(self, query)

    for number in range(80):
        event = EU1.added(f"p{number}", number + 1, body=pod(f"p{number}", 1, note="x" * 100_000))
        then = await past_api.past.record(event)
    monkeypatch.setattr(PastStates, "at", count)
    monkeypatch.setattr(SnapshotReader, "list", note)
    answer = await past_api.get(PATH, asOf=rfc3339(then), limit=1000)
    assert len(answer.json()["items"]) == 80
    assert sum(sizes) == 80
    assert max(sizes) <= 32
    assert max(sizes[1:]) <= 12
    assert None not in bounds


@pytest.mark.parametrize(
    "made_up",
    [
        {"key": b"\xff\xfe"},
        {"cluster": "\x00*>"},
        {"cluster": "zz"},
        {"generation": "x" * 100},
        {"at": 0},
        {"at": -(10**18)},
        {"at": 200_000_000_000_000_000},
    ],
    ids=str,
)
async def test_a9_a_token_that_somebody_has_made_up_is_refused_or_leads_nowhere(
    past_api: PastApi, made_up: dict[str, Any]
):
    for number in range(3):
        event = EU1.added(f"p{number}", number + 1, body=pod(f"p{number}", 1))
        then = await past_api.past.record(event)
    first = (await past_api.get(PATH, asOf=rfc3339(then), limit=1)).json()
    token = first["continue"]
    raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_")
    known = msgspec.msgpack.decode(raw, type=PastPosition)
    forged = write_past_token(msgspec.structs.replace(known, **made_up))
    answer = await past_api.get(PATH, asOf=rfc3339(then), limit=1, **{"continue": forged})
    assert answer.status_code in (200, 400, 410), answer.text
    if "at" in made_up:
        assert answer.status_code in (400, 410), answer.text
