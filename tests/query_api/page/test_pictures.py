"""The pictures of the documentation: `make test-ui SHOTS=1` writes docs/images anew.

Without SHOTS the same walk is done and nothing is written.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.full import SHOTS
from support.processes.chromium import needs_chromium
from support.rigs.shop_fleet import shop_fleet

if TYPE_CHECKING:
    from support.processes.chromium import Page

pytestmark = [needs_chromium, pytest.mark.ui]

IMAGES = Path(__file__).parents[3] / "docs" / "images"
CHECKOUT = "/object?resource=deployments.apps&namespace=shop&name=checkout"

# name, address, what is seen once all of it is there, scheme, width and height
PICTURES = [
    ("fleet", "/", "Deployment shop/checkout", "light", 1280, 800),
    ("fleet-dark", "/", "Deployment shop/checkout", "dark", 1280, 800),
    ("fleet-narrow", "/", "Deployment shop/checkout", "light", 390, 844),
    ("search", "/search?resource=pods&namespace=shop", "Running", "light", 1280, 720),
    ("object", CHECKOUT, "checkout:1.8.2", "light", 1280, 720),
    ("changes", "/changes?since={before}", "checkout:1.8.2", "light", 1280, 720),
    ("timeline", f"{CHECKOUT}&cluster=eu1&tab=timeline", "bus", "light", 1280, 720),
    (
        "past",
        f"{CHECKOUT}&cluster=eu1&tab=yaml&asOf={{before}}",
        "image: checkout",
        "light",
        1280,
        620,
    ),
    ("rollout", "/rollouts?namespace=default&name=banner", "approval", "dark", 1280, 720),
    ("queues", "/queues", "distributor", "light", 1280, 620),
]


@pytest.mark.timeout(240)
async def test_the_pictures_of_the_documentation(tmp_path: Path, page: Page):
    IMAGES.mkdir(exist_ok=True)
    async with shop_fleet(tmp_path) as fleet:
        await fleet.fill()
        await page.open(f"{fleet.url}/rollouts")
        await page.until(
            "document.querySelector('#main').innerText.includes('6/7')"
            " || document.querySelector('#main').innerText.includes('7/7')"
        )
        before = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        await fleet.change()
        await fleet.cut_off("eu3")
        await page.open(fleet.url)
        silent = "document.querySelector('#main').innerText.includes('lack something: eu3')"
        await page.until(silent, timedelta(seconds=60))
        for name, address, awaited, scheme, width, height in PICTURES:
            await page.look(width=width, height=height, scheme=scheme)
            await page.open(f"{fleet.url}{address.format(before=before)}")
            await page.until(f"document.querySelector('#main').innerText.includes('{awaited}')")
            await page.until(
                "!document.querySelector('#main').innerText.includes('Still comparing')"
            )
            await page.until("!document.querySelector('#main').innerText.includes('Reading the')")
            await page.until("!document.querySelector('.tiles')?.innerText.includes('…')")
            if SHOTS:
                await page.screenshot(IMAGES / f"page-{name}.png")
        await page.open("about:blank")  # it would go on to ask
