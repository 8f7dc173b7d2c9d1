"""Addresses that somebody else has written: what they put into the page, and into its commands."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from support.processes.chromium import needs_chromium

if TYPE_CHECKING:
    from support.processes.chromium import Page
    from support.rigs.query_api import QueryApi

pytestmark = needs_chromium

COMMANDS = "[...document.querySelectorAll('.command code')].map((one) => one.textContent)"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    await api.add_cluster("eu1", "core/configmaps")
    await api.add("eu1", "core/configmaps", "settings")
    return api


async def command_of(page: Page, words: list[str]) -> str:
    """The command that the page shows for these words."""
    folder = "document.querySelector('script[src]').src.replace('app.js', '')"
    code = f"import({folder} + 'parts.js').then((m) => m.commandOf({json.dumps(words)}))"
    return await page.evaluate(code)


async def test_a_command_is_pasted_as_plain_text_and_has_no_option(fleet: QueryApi, page: Page):
    """A terminal acts on a pasted control character, whatever quotes are around it."""
    await page.open(fleet.url)
    for word in ("a\x03\nid", "it's\x1b[2J\\", "\u202egnp.exe", "\u0085\u2028"):
        command = await command_of(page, ["printf", "%s", word])
        assert command.isprintable(), command
        run: Any = subprocess.run
        ran = await asyncio.to_thread(run, ["bash", "-c", command], capture_output=True, check=True)
        assert ran.stdout.decode() == word
    # Nor has it an option in place of a name.
    assert await command_of(page, ["fleetbus", "get", "--server=https://evil"]) == ""


@pytest.mark.parametrize(
    "text",
    [
        "#;$(id)",
        pytest.param("?limit=1;$(id)", marks=pytest.mark.ui),
        pytest.param("';id;'", marks=pytest.mark.ui),
    ],
)
async def test_an_address_puts_no_word_of_a_shell_into_a_command(
    fleet: QueryApi, page: Page, text: str
):
    for address in (
        f"/object?resource={quote(f'cm{text}')}&namespace=prod&name=settings&tab=tree",
        f"/object?resource=cm&namespace=prod&name=settings&tab=tree&cluster={quote(text)}",
        f"/search?where={quote(f'settings{text}')}",
    ):
        await page.open(fleet.url + address)
        await page.until("document.querySelector('#main :is(.problem, tbody, code)')")
        for command in await page.evaluate(COMMANDS):
            shell = shlex.shlex(command, posix=True, punctuation_chars=True)
            shell.commenters = ""  # within a word there is no comment
            assert not {";", "(", ")", ");"} & set(shell), command
    page.errors = [error for error in page.errors if "/fleet/v1/" not in error]


@pytest.mark.ui
async def test_a_tab_that_does_not_exist_is_the_first_one(fleet: QueryApi, page: Page):
    await page.open(f"{fleet.url}/object?resource=cm&namespace=prod&name=settings&tab=toString")
    await page.until("document.querySelector('[aria-label=YAML]')")
    await page.until("document.querySelector('.slider .dim')")  # there is no NATS: no history
    page.errors = [error for error in page.errors if "/fleet/v1/history" not in error]


@pytest.mark.ui
async def test_a_token_is_kept_where_storage_is_switched_off(fleet: QueryApi, page: Page):
    refuse = "Object.defineProperty(window, 'sessionStorage', { get() { throw Error('off'); } })"
    await page.call("Page.addScriptToEvaluateOnNewDocument", source=refuse)
    await page.open(fleet.url)
    folder = "document.querySelector('script[src]').src.replace('app.js', '')"
    code = f"import({folder} + 'api.js').then((m) => (m.keepToken('t'), m.readToken()))"
    assert await page.evaluate(code) == "t"


@pytest.mark.ui
async def test_space_does_what_a_focused_button_is_for(fleet: QueryApi, page: Page):
    await page.open(f"{fleet.url}/live?resource=cm")
    await page.until("document.querySelector('.command button')")
    await page.evaluate("document.querySelector('.command button').focus()")
    await page.press(" ")
    await page.until("document.querySelector('.command button').textContent !== 'copy'")
    assert await page.evaluate("document.querySelector('.bar button').textContent") == "Pause"
