"""A reply that is not an API server's, or is about another object, proves nothing (W13, R6)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from fleetbus.errors import KubeError, NotFound, Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus_proto.resources import parse_resource
from support.rigs.agents import Connect

MAPS = "v1/configmaps"
HTML, TEXT, JSON = "text/html", "text/plain", "application/json"


@dataclass
class Server:
    """A server that sends the same answer to every request."""

    client: KubeClient
    answer: tuple[int, str, str] = (200, JSON, "{}")


@pytest.fixture
async def server(connect: Connect) -> AsyncGenerator[Server]:
    connections: set[asyncio.Task[None] | None] = set()
    fake: Server | None = None

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            while await reader.readuntil(b"\r\n\r\n"):
                status, kind, body = fake.answer if fake is not None else (404, TEXT, "")
                head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                await writer.drain()
                break
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    document: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
    async with connect(document) as client:
        fake = Server(client)
        yield fake
    listening.close()


def status(**fields: Any) -> str:
    document: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": 404,
    }
    return json.dumps(document | fields)


def not_found(**details: str) -> str:
    return status(reason="NotFound", message="not found", details=details)


FALSE_ABSENCES = {
    "a proxy's page": (HTML, "<html><title>404 Not Found</title></html>"),
    "plain text": (TEXT, "404 page not found\n"),
    "nothing": (TEXT, ""),
    "a gateway's JSON": (JSON, '{"message": "no Route matched"}'),
    "a gateway's JSON that names the object": (
        JSON,
        '{"reason": "NotFound", "details": {"name": "x", "kind": "configmaps"}}',
    ),
    "another object": (JSON, not_found(name="c-1", kind="clusters")),
    "another kind of the same name": (JSON, not_found(name="x", kind="clusters")),
    "no object": (JSON, status(reason="NotFound", message="not found")),
    "the namespace": (JSON, not_found(name="n", kind="namespaces")),
}


@pytest.mark.parametrize("case", FALSE_ABSENCES)
async def test_a_404_about_anything_else_is_no_absence(server: Server, case: str):
    server.answer = (404, *FALSE_ABSENCES[case])
    with pytest.raises(NotFound):
        await server.client.get(MAPS, "n", "x")
    with pytest.raises(NotFound):
        await server.client.delete(MAPS, "n", "x", uid="u")


async def test_a_404_of_an_api_server_about_the_object_is_its_absence(server: Server):
    server.answer = (404, JSON, not_found(name="x", kind="configmaps"))
    assert await server.client.get(MAPS, "n", "x") is None
    assert await server.client.delete(MAPS, "n", "x", uid="u") is False


@pytest.mark.parametrize(
    "body",
    [
        "null",
        "",
        "{}",
        '{"kind": "ConfigMap", "metadata": {"name": "y", "uid": "u"}}',
        '{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [1]}',
        '{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": "abc"}',
        "<html>",
    ],
)
async def test_a_200_that_holds_something_else_is_no_answer(server: Server, body: str):
    server.answer = (200, JSON, body)
    for call in (
        server.client.get(MAPS, "n", "x"),
        server.client.list(MAPS),
        server.client.delete(MAPS, "n", "x", uid="u"),
    ):
        with pytest.raises(Unreachable):
            await call


@pytest.mark.parametrize("member", ["uid", "resourceVersion"])
@pytest.mark.parametrize("value", [7, None, ["u"], "u" * 1000])
async def test_an_id_that_no_server_gives_is_no_answer(server: Server, member: str, value: Any):
    """The UID of a member's object is recorded in a status that is shared with all others."""
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", member: value}}
    server.answer = (200, JSON, json.dumps(obj))
    for call in (
        server.client.get(MAPS, "n", "x"),
        server.client.apply(MAPS, obj, field_manager="m"),
        server.client.create(MAPS, obj),
    ):
        with pytest.raises(Unreachable):
            await call


@pytest.mark.parametrize(
    "body",
    [
        status(status="Success", code=200, details={"name": "x", "kind": "configmaps"}),
        '{"kind": "ConfigMap", "metadata": {"name": "x", "uid": "u"}}',
    ],
)
async def test_a_deletion_is_answered_by_a_status_or_the_object(server: Server, body: str):
    server.answer = (200, JSON, body)
    assert await server.client.delete(MAPS, "n", "x", uid="u")


@pytest.mark.parametrize("case", ["a proxy's page", "a gateway's JSON", "nothing"])
async def test_a_404_on_discovery_does_not_mean_that_a_type_is_not_served(
    server: Server, case: str
):
    server.answer = (404, *FALSE_ABSENCES[case])
    with pytest.raises(KubeError) as refused:
        await server.client.discovery.serves(parse_resource(MAPS))
    assert not isinstance(refused.value, NotFound)  # which would mean that it is away
