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
    from collections.abc import AsyncGenerator, Generator
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
            answer = json.loads(message.data)
            if "id" in answer:
                self._answers.pop(answer["id"]).set_result(answer)
            else:
                self._note(answer["method"], answer["params"])

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
        reply = await answer
        assert "error" not in reply, (method, reply)
        return reply["result"]

    async def open(self, url: str) -> None:
        """Go to an address; returns when its scripts have run once."""
        await self.call("Page.navigate", url=url)
        await eventually(lambda: self.evaluate("document.readyState === 'complete'"), _WITHIN)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for.

        Raises:
            AssertionError: it throws.
        """
        reply = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in reply, (expression, reply)
        return reply["result"].get("value")

    async def until(self, expression: str, within: timedelta = _WITHIN) -> None:
        """Wait until an expression is true."""
        try:
            await eventually(lambda: self.evaluate(f"Boolean({expression})"), within)
        except AssertionError as e:
            text = await self.evaluate("document.body.innerText.slice(0, 3000)")
            raise AssertionError(f"{expression}: {e}\n{text}\n{self.errors}") from e

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
        reply = await self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(reply["data"]))


@contextlib.contextmanager
def chromium(folder: Path) -> Generator[str]:
    """Start a browser with an empty profile in a folder; yields the address of its protocol."""
    path = find_chromium()
    assert path is not None, "no Chromium is installed"
    port_file = folder / _PORT_FILE
    child = Child(
        "chromium",
        [path, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"],
        log=folder.with_suffix(".log"),
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        child.wait_until_blocking(lambda: len(_read_words(port_file)) == 2, within=_WITHIN)
        port, browser = _read_words(port_file)
        yield f"ws://127.0.0.1:{port}{browser}"
    finally:
        child.stop_blocking()


def _read_words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


@asynccontextmanager
async def open_page(browser: str) -> AsyncGenerator[Page]:
    """Open a tab in a context of its own, which shares nothing with those before it."""
    async with aiohttp.ClientSession() as session, _connected(session, browser) as control:
        context = await control.call("Target.createBrowserContext")
        target = await control.call("Target.createTarget", url="about:blank", **context)
        tab = f"{browser.partition('/devtools/')[0]}/devtools/page/{target['targetId']}"
        async with _connected(session, tab) as page:
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            yield page
        await control.call("Target.disposeBrowserContext", **context)


@asynccontextmanager
async def _connected(session: aiohttp.ClientSession, url: str) -> AsyncGenerator[Page]:
    async with session.ws_connect(url, max_msg_size=0) as socket:
        page = Page(socket)
        reading = asyncio.create_task(page.read(), name="chromium")
        try:
            yield page
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
