"""A watch of `fleetbus get -w` outlasts the query API."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.objects import follow
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.target import Target

RESOURCE = {"group": "core", "version": "v1", "versions": ["v1"], "plural": "pods"}
EVENT = b'{"type":"ADDED","object":{"metadata":{"name":"web","resourceVersion":"7"}}}\n'
OUTAGE = 100
"""Answers, before there is another."""


class Away(BaseHTTPRequestHandler):
    """Answers 503 for long, then a watch with one event, and then 403."""

    asked: Iterator[int]

    def do_GET(self) -> None:
        number = next(self.asked)
        self.send_response(503 if number < OUTAGE else 200 if number == OUTAGE else 403)
        self.end_headers()
        if number == OUTAGE:
            self.wfile.write(EVENT)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002


@pytest.fixture
def url() -> Iterator[str]:
    handler = type("Handler", (Away,), {"asked": itertools.count()})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_watch_goes_on_after_an_outage_of_any_length_and_ends_with_a_refusal(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(follow, "MAX_WAIT_SECONDS", 0.001)
    start = follow.Start(RESOURCE, "5")
    events = follow.follow_events(
        ApiClient(Target(api_url=url)), ObjectQuery(resource="pods"), start
    )

    kind, tree = next(events)

    assert (kind, tree["metadata"]["name"]) == ("ADDED", "web")
    assert capsys.readouterr().err.count("trying again") == 4
    with pytest.raises(ApiFailed):
        next(events)
