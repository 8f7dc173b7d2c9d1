"""The past as the page shows it, from the stream of events: changes, a timeline, a moment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.process.clock import rfc3339
from support.processes.chromium import needs_chromium
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from datetime import datetime

    from support.processes.chromium import Page
    from support.rigs.past_api import PastApi

# tests/query_api/past and history have what the API answers.
pytestmark = [needs_chromium, pytest.mark.ui]

CLUSTERS = ("eu1", "us1", "ap1")
RESOURCE = "apps/deployments"
OBJECT = "/object?resource=deployments.apps&namespace=prod&name=web&cluster=eu1"


def source(cluster: str) -> Source:
    return Source(cluster=cluster, group="apps", resource="deployments")


def deployment(name: str, version: int, image: str) -> bytes:
    metadata = {"name": name, "namespace": "prod", "resourceVersion": str(version), "uid": name}
    spec = {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}
    return json.dumps({"metadata": metadata, "spec": spec}).encode()


@pytest.fixture
async def before(past_api: PastApi) -> datetime:
    """A moment before the image changed everywhere but in ap1, and something was deleted."""
    for name in CLUSTERS:
        await past_api.add_cluster(name, RESOURCE)
    await past_api.past.record(
        *(source(c).added("web", 10, body=deployment("web", 10, "web:1")) for c in CLUSTERS)
    )
    at = await past_api.past.record(source("us1").added("old", 11, body=deployment("old", 11, "x")))
    await past_api.past.record(
        source("eu1").modified("web", 20, body=deployment("web", 20, "web:2")),
        source("us1").modified("web", 20, body=deployment("web", 20, "web:2")),
        source("us1").deleted("old", 21),
    )
    return at


def shows(text: Any) -> str:
    return f"document.querySelector('#main').innerText.includes({json.dumps(text)})"


async def test_a9_what_changed_and_where_not_is_seen_at_once(
    past_api: PastApi, page: Page, before: datetime
):
    """Rule A9: with the window of what is known; a deletion has the command that undoes it."""
    await page.open(f"{past_api.url}/changes?since={rfc3339(before).replace('+', '%2B')}")
    await page.until(shows("in 2 of 3 clusters: eu1, us1; not in ap1"))
    text = (await page.text()).replace("\n", " ")
    assert "web:1 → web:2" in text
    assert "History since" in text
    assert "fleetbus restore deployments.apps old --since" in text
    assert text.index("prod/old") < text.index("prod/web"), "what is gone comes first"


async def test_a9_the_timeline_of_an_object_leads_to_its_past(
    past_api: PastApi, page: Page, before: datetime
):
    """Rule A9: each change with what it changed, and the object as it was then."""
    await page.open(f"{past_api.url}{OBJECT}&tab=timeline&since=1h")
    await page.until("document.querySelectorAll('.timeline > li').length === 2")
    assert "web:1 → web:2" in (await page.text(".timeline")).replace("\n", " ")
    assert "change → bus" in (await page.text(".timeline .steps")).replace("\n", " ")

    await page.open(f"{past_api.url}{OBJECT}&asOf={rfc3339(before).replace('+', '%2B')}&tab=yaml")
    await page.until(shows("image: web:1"))
    assert "image: web:2" not in await page.text()
    await page.until("document.querySelector('.slider input[type=range]')")
    await page.click(".time .button")
    await page.until(shows("image: web:2"))


async def test_a9_a_search_in_the_past_has_what_was_there(
    past_api: PastApi, page: Page, before: datetime
):
    """Rule A9."""
    at = rfc3339(before).replace("+", "%2B")
    await page.open(f"{past_api.url}/search?resource=deploy&asOf={at}")
    await page.until("document.querySelectorAll('.row').length === 4")
    assert "old" in await page.text(".list")
    assert "as of" in await page.text(".status")
    assert "--as-of" in await page.text(".commands")


async def test_a9_a_time_before_the_window_is_said_and_the_rest_is_shown(
    past_api: PastApi, page: Page, before: datetime
):
    """Rule A9: with the reason that the API gives."""
    del before
    await page.open(f"{past_api.url}/changes?since=2020-01-01T00:00:00Z")
    await page.until("document.querySelector('[role=alert]')?.innerText.includes('cannot be')")
    await page.until(shows("prod/web"))
    await page.open(f"{past_api.url}/changes?since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z")
    await page.until("document.querySelector('[role=alert]')?.innerText.startsWith('410')")
    address = "/object?resource=deployments.apps&namespace=prod&name=web&asOf=2020-01-01T00:00:00Z"
    await page.open(f"{past_api.url}{address}")
    await page.until("document.querySelector('[role=alert]')?.innerText.startsWith('410')")
    assert await page.evaluate("document.querySelector('[name=asOf]').value.startsWith('2020')")
    page.errors = [error for error in page.errors if "410" not in error]
