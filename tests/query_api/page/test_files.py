"""The files of the page: open to all, and nothing else is; protected, small, kept by browsers."""

from __future__ import annotations

import asyncio
import gzip
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

from fleetbus_query_api.page.files import DOCUMENTS, PageFiles
from support.rigs.secured_api import secured_api

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

    from support.rigs.query_api import QueryApi
    from support.rigs.secured_api import SecuredApi

FILES = PageFiles.load().by_path
SCRIPTS = {path: file.body.decode() for path, file in FILES.items() if path.endswith(".js")}
INDEX = FILES["/"].body.decode()
NEAR = (
    *("", "/", "//", "/.", "/..", "/index.html", "?token=x", "?", ";", "%00", "%2f", "/../fleet"),
    *("/../../fleet/v1/clusters", "/%2e%2e/fleet/v1/clusters", ".map", "~", "%20", "\\"),
)
ROUTES = (
    *("/fleet/v1/clusters", "/fleet/v1/resources", "/fleet/v1/queues", "/fleet/v1/held-deletions"),
    *("/fleet/v1/history", "/fleet/v1/changes", "/openapi.json", "/v1/list", "/kube/eu1/api/v1"),
    *("/page", "/page/", "/page/files.py", "/page/static/index.html", "/static", "/favicon.ico"),
    *("/metrics", "/healthz", "/docs", "/robots.txt", "/nowhere"),
)


@pytest.fixture
async def secured(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    async with secured_api(redis, valkey_url, tmp_path) as server:
        yield await server.start()


def _variants(path: str) -> set[str]:
    """Addresses that are like a path, and are not it."""
    near = {f"{path}{more}" for more in NEAR if more} | {f"/{path}", path.upper(), path[:-1]}
    near |= {f"{path}{route}" for route in ROUTES} | {f"{route}/..{path}" for route in ROUTES}
    return {one for one in near if one.startswith("/")}


async def test_a1_exactly_the_files_of_the_page_need_no_token(secured: SecuredApi):
    """Rule A1: whatever is like them takes a token, however it is written."""
    for path, file in FILES.items():
        answer = await secured.get("", path)
        assert (answer.status_code, answer.content) == (200, file.body), path

    paths = {*ROUTES}.union(*map(_variants, ("/", "/search", "/object", next(iter(SCRIPTS)))))
    served = {path: await _status(secured.url, path) for path in paths}
    expected = {path: 200 if unquote(path.partition("?")[0]) in FILES else 401 for path in paths}
    assert served == expected
    assert 5 < list(served.values()).count(200) < len(paths) / 10


async def _status(url: str, path: str) -> int:
    """The status of a path that is sent as it is written: clients would resolve the dots."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return int(line.split()[1])


async def test_a1_an_open_file_is_no_way_to_the_api(secured: SecuredApi):
    """The path as it is sent decides, also with a body, another method or a foreign Host header."""
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        answer = await secured.client.request(method, "/search")
        assert answer.status_code in {401, 405}, method
    headers = {"X-Original-URL": "/fleet/v1/clusters", "X-Rewrite-URL": "/fleet/v1/clusters"}
    answer = await secured.client.get("/", headers=headers)
    assert answer.content == FILES["/"].body


async def test_a3_a_request_for_the_page_is_no_line_of_the_audit(
    secured: SecuredApi, capsys: pytest.CaptureFixture[str]
):
    """Rule A3: the page holds no data; what its scripts ask for is logged."""
    capsys.readouterr()
    await secured.get("", "/")
    await secured.get("", "/fleet/v1/clusters")
    lines = [line for line in capsys.readouterr().out.splitlines() if "api_request" in line]
    assert len(lines) == 1
    assert "/fleet/v1/clusters" in lines[0]


async def test_without_authentication_the_page_is_for_this_machine_only(api: QueryApi):
    assert (await api.get("/")).status_code == 200
    answer = await api.client.get("/", headers={"Host": "evil.example"})
    assert answer.status_code == 421


async def test_each_file_forbids_foreign_scripts_and_frames(api: QueryApi):
    for path in FILES:
        answer = await api.get(path)
        lines = answer.headers["content-security-policy"].split("; ")
        assert dict(directive.split(" ", 1) for directive in lines) == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "connect-src": "'self'",
            "img-src": "'self' data:",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
            "base-uri": "'none'",
            "require-trusted-types-for": "'script'",
            "trusted-types": "'none'",
        }
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["vary"] == "Accept-Encoding"


async def test_browsers_keep_the_scripts_and_ask_for_the_document_again(api: QueryApi):
    for path, file in FILES.items():
        answer = await api.get(path)
        is_kept = "immutable" in answer.headers["cache-control"]
        assert is_kept is (path not in DOCUMENTS), path
        again = await api.client.get(path, headers={"If-None-Match": f'"other", W/{file.etag}'})
        assert (again.status_code, again.content) == (304, b"")
        changed = await api.client.get(path, headers={"If-None-Match": '"other"'})
        assert changed.status_code == 200


async def test_a_file_is_compressed_for_who_can_read_that(api: QueryApi):
    cases = {"gzip": True, "br, gzip;q=0.5": True, "": False, "gzip;q=0": False, "br": False}
    for accepted, packed in cases.items():
        stream = api.client.stream("GET", "/", headers={"Accept-Encoding": accepted})
        async with stream as answer:
            raw = b"".join([chunk async for chunk in answer.aiter_raw()])
            assert ("content-encoding" in answer.headers) is packed
        assert (gzip.decompress(raw) if packed else raw) == FILES["/"].body


def test_the_whole_page_is_small():
    transferred = sum(len(FILES[path].packed) for path in FILES if path not in DOCUMENTS)
    transferred += len(FILES["/"].packed)
    assert transferred < 62_000
    assert sum(len(file.body) for path, file in FILES.items() if path not in DOCUMENTS) < 300_000


def test_the_document_names_every_script_and_holds_none():
    named = set(re.findall(r'(?:href|src)="([^"]+)"', INDEX))
    assert named >= SCRIPTS.keys()
    assert {address for address in named if address.startswith("/page/")} == FILES.keys() - {
        *DOCUMENTS
    }
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", INDEX)


def test_no_script_makes_html_of_a_text_or_keeps_a_token_for_long():
    for path, text in SCRIPTS.items():
        code = re.sub(r"^\s*(//|\*|/\*).*$", "", text, flags=re.MULTILINE)
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment"
            r"|DOMParser|eval\(|new Function|localStorage|document\.cookie|console\.",
            code,
        ), path
        assert not re.search(r"https?://", code), path
        uses = re.findall(r"sessionStorage\.\w+", code)
        assert not uses or path.endswith("/api.js"), path


def test_a_token_is_in_no_address():
    """Only `api.js` reads it, into a header."""
    readers = [path for path, text in SCRIPTS.items() if "readToken" in text]
    assert {path.rpartition("/")[2] for path in readers} == {"api.js", "token.js"}
    api = next(text for path, text in SCRIPTS.items() if path.endswith("/api.js"))
    uses = [line for line in api.splitlines() if re.search(r"\btoken\b", line) and "{" in line]
    assert not [line for line in uses if "query" in line or "url" in line]
