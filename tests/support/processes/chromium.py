"""A headless Chromium, driven over its DevTools protocol; nothing but a browser is needed.

Debian has it as the package `chromium`; FLEETBUS_CHROMIUM names another one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from fleetbus_devfleet.processes.children import Child
from support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--enable-precise-memory-info",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_WITHIN = timedelta(seconds=20)
_PORT_FILE = "DevToolsActivePort"
_CLOSE_SECONDS = 3


def find_chromium() -> str | None:
    """The path of a browser; None where there is none."""
    named = os.environ.get("FLEETBUS_CHROMIUM", "")
    return named or shutil.which("chromium") or shutil.which("google-chrome")


needs_chromium = pytest.mark.skipif(
    find_chromium() is None,
    reason="needs Chromium: `apt-get install chromium`, or its path in FLEETBUS_CHROMIUM",
)


@dataclass
class Page:
    """One tab.

    Attributes:
        errors: what its scripts threw, and what the console shows as errors.
        requests: the addresses that it has asked for.
        received: bytes that came over the network, compressed, with heads.
    """

    socket: aiohttp.ClientWebSocketResponse
    errors: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])
    received: int = 0
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _answers: dict[int, asyncio.Future[dict[str, Any]]] = field(
        default_factory=dict[int, "asyncio.Future[dict[str, Any]]"]
    )

    async def read(self) -> None:
        """Read what the browser sends, until it is gone."""
        async for message in self.socket:
            found = json.loads(message.data)
            if "id" in found:
                self._answers.pop(found["id"]).set_result(found)
            else:
                self._note(found["method"], found["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                thrown = details.get("exception", {}).get("description", details["text"])
                self.errors.append(thrown)
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                entry = params["entry"]
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Network.loadingFinished":
                self.received += int(params["encodedDataLength"])
            case _:
                pass

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol.

        Raises:
            AssertionError: the browser refuses it.
        """
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": params})
        found = await answer
        assert "error" not in found, (method, found)
        return found["result"]

    async def open(self, url: str) -> None:
        """Go to an address; returns when its scripts have run once."""
        await self.call("Page.navigate", url=url)
        await eventually(lambda: self.evaluate("document.readyState === 'complete'"), _WITHIN)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for.

        Raises:
            AssertionError: it throws.
        """
        found = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, (expression, found)
        return found["result"].get("value")

    async def until(self, expression: str, within: timedelta = _WITHIN) -> None:
        """Wait until an expression is true."""
        try:
            await eventually(lambda: self.evaluate(f"Boolean({expression})"), within)
        except AssertionError as e:
            shown = await self.evaluate("document.body.innerText.slice(0, 3000)")
            raise AssertionError(f"{expression}: {e}\n{shown}\n{self.errors}") from e

    async def text(self, selector: str = "#main") -> str:
        """The text of an element as a person sees it; empty without one."""
        return await self.evaluate(
            f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        )

    async def click(self, selector: str) -> None:
        """Click an element, once it is there."""
        await self.until(f"document.querySelector({json.dumps(selector)})")
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    async def press(self, key: str, text: str = "") -> None:
        """Press and release a key; letters stand for themselves."""
        text = text or (key if len(key) == 1 else "\r" if key == "Enter" else "")
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38}
        common = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text: str) -> None:
        """Enter text into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def look(
        self, *, width: int = 1280, height: int = 800, scheme: str = "light", motion: str = ""
    ) -> None:
        """Set the window and what its user prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self, file: Path) -> None:
        """Write what is seen to a PNG file."""
        found = await self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def chromium_page(folder: Path) -> AsyncGenerator[Page]:
    """Start a browser with an empty profile below a folder; yields its only tab."""
    path = find_chromium()
    assert path is not None, "no Chromium is installed"
    profile = folder / "chromium"
    child = Child(
        "chromium",
        [path, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        log=folder / "chromium.log",
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        await child.wait_until((profile / _PORT_FILE).exists, within=_WITHIN)
        async with aiohttp.ClientSession() as session:
            url = await eventually(lambda: _find_tab(session, profile), _WITHIN)
            socket = session.ws_connect(url, max_msg_size=0)
            async with socket as connected, _reading(Page(connected)) as page:
                yield page
    finally:
        await child.stop()


async def _find_tab(session: aiohttp.ClientSession, profile: Path) -> str:
    lines = (profile / _PORT_FILE).read_text().split()
    if not lines:
        return ""
    async with session.get(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
        tabs: list[dict[str, Any]] = await answer.json()
    return next((one["webSocketDebuggerUrl"] for one in tabs if one["type"] == "page"), "")


@asynccontextmanager
async def _reading(page: Page) -> AsyncGenerator[Page]:
    reading = asyncio.create_task(page.read(), name="chromium")
    try:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        yield page
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(page.call("Browser.close"), _CLOSE_SECONDS)
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
