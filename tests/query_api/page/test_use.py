"""The page in use: by keyboard, on a narrow screen, in the dark, with a token, over a bad line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.processes.chromium import needs_chromium
from support.rigs.secured_api import grant, rule, secured_api

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

    from support.processes.chromium import Page
    from support.rigs.query_api import QueryApi
    from support.rigs.secured_api import SecuredApi

pytestmark = [needs_chromium, pytest.mark.ui]

VIEWS = (
    *("/", "/search", "/search?resource=pods&wide=1", "/live?resource=pods", "/queues"),
    *("/rollouts", "/changes", "/object?resource=cm&namespace=prod&name=settings"),
    *(f"/object?resource=cm&namespace=prod&name=settings&tab={tab}" for tab in ("yaml", "tree")),
    "/object?resource=cm&namespace=prod&name=settings&tab=events",
    "/search?resource=cm&name=nothing",
)


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    for number in range(1, 4):
        name = f"c{number}"
        await api.add_cluster(name)
        data = {"colour": "blue" if number == 1 else "green", "long": "x" * 200}
        await api.add(name, "core/configmaps", "settings", data=data)
        for at in range(50):
            await api.add(name, "core/pods", f"pod-{at:02}", status={"phase": "Running"})
    return api


def forgive(page: Page, *parts: str) -> None:
    """Drop what the API refuses on purpose: it is no mistake of the page."""
    page.errors = [error for error in page.errors if not any(text in error for text in parts)]


async def test_everything_can_be_done_by_keyboard(fleet: QueryApi, page: Page):
    await page.open(fleet.url)
    await page.until("document.querySelector('[data-cluster]')")
    await page.press("/")
    await page.until("document.activeElement.id === 'quick'")
    await page.type("po -l a!=b --cluster c2")
    await page.press("Enter")
    await page.until("location.search === '?resource=pods&labelSelector=a%21%3Db&cluster=c2'")
    await page.until("document.querySelectorAll('.row').length > 20")
    for key in "jjk":
        await page.press(key)
    await page.until("document.querySelector('.row.selected')?.innerText.includes('pod-00')")
    await page.press("j")
    await page.press("Enter")
    await page.until("location.pathname === '/object' && location.search.includes('name=pod-01')")
    await page.press("Escape")
    await page.until("location.pathname === '/search'")
    await page.press("?")
    await page.until("document.querySelector('dialog[open]')?.innerText.includes('next row')")
    await page.press("Escape")
    await page.until("document.querySelector('dialog[open]') === null")
    await page.press("g")
    await page.press("q")
    await page.until("location.pathname === '/queues'")
    forgive(page, "/fleet/v1/history", "/held-deletions")


async def test_a_name_is_found_in_the_whole_fleet(fleet: QueryApi, page: Page):
    await page.open(fleet.url)
    await page.press("/")
    await page.type("settings")
    await page.press("Enter")
    await page.until("document.querySelector('#main').innerText.includes('3 objects of this name')")
    await page.press("j")
    await page.press("Enter")
    await page.until("document.querySelector('#main').innerText.includes('data.colour')")
    forgive(page, "/fleet/v1/history")


async def test_more_rows_come_as_one_scrolls(api: QueryApi, page: Page):
    await api.add_cluster("c1")
    for at in range(2_300):
        await api.add("c1", "core/configmaps", f"m-{at:04}", data={"k": "v"})
    await page.open(f"{api.url}/search?resource=cm&sort=-metadata.name")
    await page.until("document.querySelector('.status').innerText.includes('of 2,300 objects')")
    assert "m-2299" in await page.text(".row")
    for _ in range(3):
        height = "document.querySelector('.list').scrollHeight"
        await page.evaluate(f"document.querySelector('.list').scrollTop = {height}")
        await page.evaluate("new Promise((done) => setTimeout(done, 100))")
    await page.until("document.querySelector('.status').innerText.trim() === '2,300 objects.'")
    assert await page.evaluate("document.querySelectorAll('.row').length") < 80
    await page.evaluate("document.querySelector('.list').scrollTop = 1e9")
    await page.until("document.querySelector('.list').innerText.includes('m-0000')")
    table_requests = [request for request in page.requests if "view=table" in request]
    assert len(table_requests) == 3
    assert await page.evaluate("document.querySelector('.list').ariaRowCount") == "2300"


@pytest.mark.parametrize("width", [360, 390, 768, 1600])
async def test_no_view_is_wider_than_the_screen(fleet: QueryApi, page: Page, width: int):
    await page.look(width=width, height=800)
    for address in VIEWS:
        await page.open(f"{fleet.url}{address}")
        await page.until("document.querySelector('#main').innerText.length > 100")
        await page.evaluate("new Promise((done) => setTimeout(done, 200))")
        widest = await page.evaluate("document.documentElement.scrollWidth")
        assert widest <= width, address
    forgive(
        page,
        "/fleet/v1/history",
        "/fleet/v1/changes",
        "/held-deletions",
        "multiclusterres",
        "/events",
    )


async def test_compare_is_read_from_top_to_bottom_on_a_telephone(fleet: QueryApi, page: Page):
    """No part of it is scrolled sideways, and each value says of which clusters it is."""
    await page.look(width=390, height=844)
    await page.open(f"{fleet.url}/object?resource=cm&namespace=prod&name=settings")
    await page.until(
        "document.querySelector('.fields-table td') && document.querySelector('.diff')"
    )
    sideways = (
        "[...document.querySelectorAll('#main .scroll')]"
        ".filter((one) => one.scrollWidth > one.clientWidth).length"
    )
    assert await page.evaluate(sideways) == 0
    label = "getComputedStyle(document.querySelector('.fields-table td'), '::before').content"
    assert "c2, c3" in await page.evaluate(label)
    roles = "[...document.querySelectorAll('.stacked')].map((one) => one.role)"
    assert set(await page.evaluate(roles)) == {"table"}
    forgive(page, "/fleet/v1/history")


async def test_the_colours_follow_the_system_and_nothing_moves_without_leave(
    fleet: QueryApi, page: Page
):
    backgrounds: dict[str, str] = {}
    for scheme in ("light", "dark"):
        await page.look(scheme=scheme, motion="reduce")
        await page.open(fleet.url)
        backgrounds[scheme] = await page.evaluate(
            "getComputedStyle(document.body.parentNode).background"
        )
        moving = (
            "[...document.querySelectorAll('*')].filter((one) =>"
            " parseFloat(getComputedStyle(one).transitionDuration) > 0).length"
        )
        assert await page.evaluate(moving) == 0
    assert backgrounds["light"] != backgrounds["dark"]


async def test_what_is_shown_is_said_to_screen_readers(fleet: QueryApi, page: Page):
    """Names of fields, captions of tables, one heading, where one is, and what changes."""
    unnamed = """
      [...document.querySelectorAll('input, select, button, a, [role=table], [role=region], nav')]
        .filter((one) => one.checkVisibility())
        .filter((one) => !(one.ariaLabel || one.labels?.length || one.innerText?.trim()
                           || one.closest('label')))
        .map((one) => one.outerHTML.slice(0, 80))
    """
    for address in VIEWS:
        await page.open(f"{fleet.url}{address}")
        await page.until("document.querySelector('#main').innerText.length > 100")
        await page.until("document.querySelectorAll('#main h1').length === 1")
        assert await page.evaluate(unnamed) == [], address
        bare = "[...document.querySelectorAll('table')].filter((one) => !one.caption).length"
        assert await page.evaluate(bare) == 0, address
        assert await page.evaluate("document.querySelectorAll('[aria-live]').length") == 1
        assert await page.evaluate("document.documentElement.lang") == "en"
    forgive(
        page,
        "/fleet/v1/history",
        "/fleet/v1/changes",
        "/held-deletions",
        "multiclusterres",
        "/events",
    )


async def test_focus_is_seen(fleet: QueryApi, page: Page):
    await page.open(fleet.url)
    await page.until("document.querySelector('[data-cluster]')")
    await page.press("j")
    style = "getComputedStyle(document.activeElement)"
    assert await page.evaluate(f"{style}.outlineStyle") == "solid"
    assert float((await page.evaluate(f"{style}.outlineWidth")).removesuffix("px")) >= 2


# --- with users ----------------------------------------------------------------------------------


@pytest.fixture
async def secured(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    async with secured_api(redis, valkey_url, tmp_path) as server:
        yield await server.start()


async def enter(page: Page, token: str) -> None:
    await page.until("document.querySelector('dialog[open] #token-input')")
    await page.evaluate("document.querySelector('#token-input').focus()")
    await page.type(token)
    await page.press("Enter")


async def test_a1_the_page_asks_for_a_token_and_shows_what_it_may_read(
    secured: SecuredApi, page: Page, capsys: pytest.CaptureFixture[str]
):
    """Rule A1: the token is in the head of requests only, and in no storage but that of the tab."""
    token = secured.user("ann")
    right = rule("get list watch", "fleetbus.dev", "clusters", "clusters/pods", names=("eu1",))
    grant(secured.hub, "ann", right)
    await page.open(f"{secured.url}/search?resource=pods")
    await page.until("document.querySelector('dialog[open]')?.innerText.includes('--audience')")
    await enter(page, "invented")
    await page.until("document.querySelector('dialog[open]')?.innerText.includes('token')")
    await enter(page, token)
    await page.until("document.querySelectorAll('.row').length === 2")
    assert "us1" not in await page.text()

    await page.open(f"{secured.url}/queues")
    await page.until("document.querySelector('#main').innerText.includes('list queues.fleetbus')")
    await page.open(f"{secured.url}/live?resource=pods")
    await page.until("document.querySelector('#main').innerText.includes('1 cluster, 1 complete')")

    assert not [request for request in page.requests if token in request]
    assert await page.evaluate("Object.values({ ...sessionStorage })") == [token]
    assert await page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    assert token not in await page.evaluate("document.documentElement.outerHTML")
    assert token not in capsys.readouterr().out
    await page.click("#token")
    await page.until("Object.keys({ ...sessionStorage }).length === 0")
    forgive(page, "401", "403")


async def test_who_declines_is_not_asked_again_and_again(secured: SecuredApi, page: Page):
    await page.open(secured.url)
    await page.until("document.querySelector('dialog[open]')")
    await page.press("Escape")
    await page.until("document.querySelector('[role=alert]')?.innerText.startsWith('401')")
    await page.evaluate("dispatchEvent(new CustomEvent('fleetbus:token', { detail: null }))")
    assert await page.evaluate("document.querySelector('dialog[open]')") is None
    await page.click("#token")
    await page.until("document.querySelector('dialog[open] #token-input')")
    forgive(page, "401")


# --- the modules alone ---------------------------------------------------------------------------


async def call(page: Page, module: str, code: str) -> Any:
    folder = "document.querySelector('script[src]').src.replace('app.js', '')"
    return await page.evaluate(f"import({folder} + {json.dumps(module)}).then((m) => ({code}))")


YAML: list[tuple[Any, list[str]]] = [
    ({"a": 1, "b": {"c": [1, "x", {"d": True, "e": None}], "f": {}, "g": []}}, []),
    ({"text": "a\n  b\n\nc", "end": "x\n", "no": "yes", "time": "2026-01-01", "n": "12"}, []),
    ({"- odd": "a: b", "#": "# x", "q": 'say "hi"', "e": "", "u": "ü", "l": "nginx:1.27"}, []),
    ({"deep": [[1, [2]], [{"a": [{"b": 1}]}]], "t": "\t", "null": "~", "w": " x "}, []),
]


async def test_yaml_of_an_object_means_the_same(fleet: QueryApi, page: Page):
    import yaml  # noqa: PLC0415 -- kubernetes_asyncio brings it

    await page.open(fleet.url)
    for tree, _ in YAML:
        lines = await call(page, "trees.js", f"m.toYaml({json.dumps(tree)})")
        assert yaml.safe_load("\n".join(lines)) == tree, lines


async def test_lines_are_compared_by_what_they_have_in_common(fleet: QueryApi, page: Page):
    await page.open(fleet.url)
    left, right = ["a", "b", "c", "d", "e"], ["a", "x", "c", "e", "f"]
    rows = await call(page, "trees.js", f"m.compareLines({left}, {right})")
    assert [(row["left"], row["right"]) for row in rows] == [
        ("a", "a"),
        ("b", "x"),
        ("c", "c"),
        ("d", None),
        ("e", "e"),
        (None, "f"),
    ]
    many = f"m.compareLines({['x'] * 3000}, {['y'] * 3000}).length"
    assert await call(page, "trees.js", many) == 3000


async def test_a_command_is_quoted_for_a_shell(fleet: QueryApi, page: Page):
    await page.open(fleet.url)
    options = '[["-l", "x in (a)"], ["-n", ""], ["-w", true]]'
    code = f'm.commandOf(["fleetbus", "get", "a b", ""], {options})'
    assert await call(page, "parts.js", code) == "fleetbus get 'a b' -l 'x in (a)' -w"
    code = """m.commandOf(["echo", "it's $HOME; `id`"])"""
    assert await call(page, "parts.js", code) == "echo 'it'\\''s $HOME; `id`'"
