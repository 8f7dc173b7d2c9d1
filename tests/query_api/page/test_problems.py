"""A query API that does not answer, and addresses that it cannot answer: a message, and a retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.processes.chromium import needs_chromium

if TYPE_CHECKING:
    from support.processes.chromium import Page
    from support.rigs.query_api import QueryApi

pytestmark = [needs_chromium, pytest.mark.ui]

OBJECT = "/object?resource=cm&namespace=prod&name=settings"
VIEWS = {
    "/": "[data-cluster]",
    "/search": "a.chip",
    "/search?resource=cm": ".row",
    "/search?where=settings": "tbody tr",
    OBJECT: ".tabs",
    f"{OBJECT}&tab=tree": ".tree",
    f"{OBJECT}&tab=events": ".hint",
    "/live?resource=cm": ".freshness .badge",
    "/queues": ".badge.good",
    "/rollouts": ".hint",
}
UNKNOWN = (
    "/search?resource=unicorns",
    "/object?resource=unicorns&namespace=prod&name=a",
    "/live?resource=unicorns",
)
ALERT = "document.querySelector('#main :is(.problem, .waiting)')"
IMPATIENT = "{ slow: 0.2, silent: 60, again: 60 }"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    await api.add_cluster("hub", "core/configmaps", "fleetbus.dev/multiclusterresources", hub=True)
    for name in ("c1", "c2"):
        await api.add_cluster(name)
        await api.add(name, "core/configmaps", "settings", data={"a": name})
    return api


async def set_patience(page: Page, patience: str) -> None:
    """Set the time-outs of the page that is open; its views start anew."""
    folder = "document.querySelector('script[src]').src.replace('app.js', '')"
    code = f"import({folder} + 'api.js').then((m) => Object.assign(m.PATIENCE, {patience}))"
    await page.evaluate(code)


async def go(page: Page, address: str) -> None:
    """Follow a link within the page, so that its modules stay."""
    code = f"history.pushState({{}}, '', '{address}'); dispatchEvent(new PopStateEvent('popstate'))"
    await page.evaluate(code)


async def hang(page: Page) -> None:
    """Let no request to the API be answered."""
    await page.call("Fetch.enable", patterns=[{"urlPattern": "*/fleet/v1/*"}])


def forgive(page: Page) -> None:
    page.errors = [error for error in page.errors if "/fleet/v1/" not in error]


async def check(page: Page, place: str, *, is_hanging: bool) -> None:
    """A view says that there is no answer, and shows one after its button was pressed."""
    await page.until(f"{ALERT}?.innerText.includes('is not responding')")
    await page.until(f"{ALERT}.querySelector('button')?.innerText === 'Retry'")
    await page.call("Fetch.disable") if is_hanging else await page.call(
        "Network.setBlockedURLs", urls=[]
    )
    await page.evaluate(
        "document.querySelectorAll('#main :is(.problem, .waiting) button')"
        ".forEach((button) => button.click())"
    )
    await page.until(f"document.querySelector('#main {place}')")
    await page.until("!document.querySelector('#main .waiting')")


@pytest.mark.parametrize("address", VIEWS)
async def test_a_hanging_api_is_said_and_a_retry_works(fleet: QueryApi, page: Page, address: str):
    await page.open(f"{fleet.url}/queues")
    await set_patience(page, IMPATIENT)
    await hang(page)
    await go(page, address if address != "/queues" else "/queues?again")
    await check(page, VIEWS[address], is_hanging=True)
    forgive(page)


@pytest.mark.parametrize("address", VIEWS)
async def test_a_killed_api_is_said_and_a_retry_works(fleet: QueryApi, page: Page, address: str):
    await page.open(f"{fleet.url}/queues")
    await set_patience(page, "{ slow: 5, silent: 60, again: 60 }")
    await page.call("Network.setBlockedURLs", urls=["*/fleet/v1/*"])
    await go(page, address if address != "/queues" else "/queues?again")
    await check(page, VIEWS[address], is_hanging=False)
    forgive(page)


async def test_a_silent_request_ends_and_is_sent_again_by_itself(fleet: QueryApi, page: Page):
    await page.open(f"{fleet.url}/queues")
    await set_patience(page, "{ slow: 60, silent: 0.3, again: 0.3 }")
    await hang(page)
    await go(page, "/search?where=settings")
    await page.until(f"{ALERT}?.innerText.includes('is not responding; retrying…')")
    await page.call("Fetch.disable")
    await page.until("document.querySelector('#main tbody tr')")
    forgive(page)


async def test_the_last_answer_stays_below_the_message(fleet: QueryApi, page: Page):
    await page.open(fleet.url)
    await page.until("document.querySelector('[data-cluster]')")
    await page.call("Network.setBlockedURLs", urls=["*/fleet/v1/clusters"])
    await page.until(f"{ALERT}?.innerText.includes('retrying')")
    assert await page.evaluate("document.querySelectorAll('[data-cluster]').length") == 3
    await page.call("Network.setBlockedURLs", urls=[])
    await page.until(f"!{ALERT}")
    forgive(page)


@pytest.mark.parametrize("address", UNKNOWN)
async def test_an_unknown_type_is_said_with_a_way_on(fleet: QueryApi, page: Page, address: str):
    await page.open(fleet.url + address)
    await page.until(f"{ALERT}?.innerText.includes('unicorns is not watched in any cluster')")
    assert await page.evaluate(f"{ALERT}.querySelector('button').innerText") == "Retry"
    assert await page.evaluate(f"{ALERT}.querySelector('a').pathname") == "/search"
    assert "Asking" not in await page.text()
    forgive(page)


async def test_a_view_that_is_left_cancels_its_requests(fleet: QueryApi, page: Page):
    await page.open(f"{fleet.url}/queues")
    await hang(page)
    await go(page, "/search?where=settings")
    requests = (
        "performance.getEntriesByType('resource').filter((one) => one.name.includes('/where'))"
    )
    await go(page, "/queues?again")
    await page.until(f"{requests}.length > 0")  # an entry is written when a request has ended
    await page.call("Fetch.disable")
    await page.until("document.querySelector('#main .badge.good')")
    assert not await page.evaluate(f"Boolean({ALERT})")
    forgive(page)
