"""Rule A3: answers of a hub, or of something in its place, that must not let anybody in."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import yaml

from fleetbus_emulator.apiserver import Cluster
from support.rigs.query_api import served
from support.servers.plain_http import http_client

if TYPE_CHECKING:
    from collections.abc import Generator

ANN = {"username": "ann", "groups": ["system:authenticated"]}
ANONYMOUS = {"username": "system:anonymous", "groups": ["system:unauthenticated"]}
ROOT = Path(__file__).parents[2]
# The status of a TokenReview, and what the API answers.
ANSWERS: list[tuple[Any, int]] = [
    # An authenticator that knows no audiences: it would accept any token.
    ({"authenticated": True, "user": ANN}, 401),
    ({"authenticated": True, "user": ANN, "audiences": []}, 401),
    ({"authenticated": True, "user": ANN, "audiences": ["other"]}, 401),
    ({"authenticated": True, "user": ANONYMOUS, "audiences": ["fleetbus"]}, 401),
    ({"authenticated": True, "user": {}, "audiences": ["fleetbus"]}, 401),
    ({"authenticated": False, "user": ANN, "audiences": ["fleetbus"]}, 401),
    ({}, 401),
    ({"authenticated": "yes", "user": ANN, "audiences": ["fleetbus"]}, 503),
    (None, 503),
]


class _Hub(BaseHTTPRequestHandler):
    status: ClassVar[Any] = {}

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"kind": "TokenReview", "status": self.status}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any, **_named: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Generator[Path]:
    with HTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = {"server": f"http://127.0.0.1:{server.server_port}"}
        document = {
            "current-context": "hub",
            "clusters": [{"name": "hub", "cluster": address}],
            "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "hub"}}],
            "users": [{"name": "hub", "user": {"token": "own"}}],
        }
        (tmp_path / "hub").write_text(yaml.safe_dump(document))
        yield tmp_path / "hub"
        server.shutdown()
        thread.join()


async def test_a3_only_a_user_whose_token_is_for_our_audience_gets_in(
    hub: Path, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shared = {"hub_kubeconfig": hub}
    async with (
        served(valkey_url, tmp_path, shared=shared, authentication="token") as url,
        http_client(url) as client,
    ):
        accepted = {"authenticated": True, "user": ANN, "audiences": ["fleetbus"]}
        for number, (status, expected) in enumerate([*ANSWERS, (accepted, 200)]):
            monkeypatch.setattr(_Hub, "status", status)
            headers = {"Authorization": f"Bearer token-{number}"}
            answer = await client.get("/openapi.json", headers=headers)
            assert answer.status_code == expected, status


def test_the_examples_of_the_documentation_are_accepted_by_an_api_server():
    cluster = Cluster("hub", authorize="rbac", tokens={"t": "root"})
    for name in ("shop", "fleetbus-clusters"):
        cluster.create("v1/namespaces", {"metadata": {"name": name}})
    text = (ROOT / "docs" / "query-api.md").read_text(encoding="utf-8")
    blocks = [section.split("```")[0] for section in text.split("```yaml\n")[1:]]
    documents = [each for block in blocks for each in yaml.safe_load_all(block)]
    assert len(documents) == 6
    for document in documents:
        kind = f"{document['apiVersion']}/{document['kind'].lower()}s"
        cluster.create(kind, document, document["metadata"].get("namespace"))
