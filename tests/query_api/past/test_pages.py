"""Pages of the past: what they hold in memory, and tokens that somebody has made up (A8, A9)."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus.process.clock import rfc3339
from fleetbus_query_api.past import pages as past_pages
from fleetbus_query_api.past import steps
from fleetbus_query_api.past.states import PastStates
from fleetbus_query_api.requests.paging import PastPosition
from support.rows import each_row
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


@pytest.mark.slow
async def test_a8_few_large_objects_of_the_past_are_read_at_a_time(
    past_api: PastApi, monkeypatch: pytest.MonkeyPatch
):
    """Each question held 250 objects of the past and of the present, of up to 1 MiB."""
    monkeypatch.setattr(steps, "STEP_BYTES", 1024**2)
    monkeypatch.setattr(past_pages, "STEP_BYTES", 1024**2)
    monkeypatch.setattr(steps, "LARGE_BYTES", 2 * 1024**2)
    sizes: list[int] = []
    at = PastStates.at

    async def count(self: PastStates, refs: Sequence[ObjectRef], time: Any) -> Any:
        sizes.append(len(refs))
        return await at(self, refs, time)

    monkeypatch.setattr(PastStates, "at", count)
    large = {"note": "x" * 100_000}
    names = [f"{kind}{number:02}" for kind in ("gone", "shrunk", "still") for number in range(40)]
    for number, name in enumerate(names):
        event = EU1.added(name, number + 1, body=pod(name, number + 1, annotations=large))
        await past_api.past.record(event)
    then = await past_api.past.now()
    for number, name in enumerate(names[:80]):
        version = 1000 + number
        if name.startswith("gone"):
            body = pod(name, version, annotations=large)
            await past_api.past.record(EU1.deleted(name, version, body=body))
        else:
            await past_api.past.record(EU1.modified(name, version, body=pod(name, version)))
    answer = await past_api.get(PATH, asOf=rfc3339(then), limit=1000)
    assert [item["object"]["metadata"]["name"] for item in answer.json()["items"]] == names
    # What has shrunk since is known only once it was read.
    assert sizes == [10, 10, 10, 50, 10, 10, 10, 10]


@each_row(
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
)
async def test_a9_a_token_that_somebody_has_made_up_is_refused_or_leads_nowhere(
    past_api: PastApi, made_up: dict[str, Any]
):
    for number in range(3):
        await past_api.past.record(EU1.added(f"p{number}", number + 1, body=pod(f"p{number}", 1)))
    then = await past_api.past.now()
    first = (await past_api.get(PATH, asOf=rfc3339(then), limit=1)).json()
    token = first["continue"]
    raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_")
    position = msgspec.msgpack.decode(raw, type=PastPosition)
    forged = msgspec.structs.replace(position, **made_up).to_token()
    answer = await past_api.get(PATH, asOf=rfc3339(then), limit=1, **{"continue": forged})
    assert answer.status_code in (200, 400, 410), answer.text
    if "at" in made_up:
        assert answer.status_code in (400, 410), answer.text
