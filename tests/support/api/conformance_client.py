"""Raw HTTP to an API server, for the conformance cases: what goes over the wire, no more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import ssl

JsonObject = dict[str, Any]
JSON = "application/json"
YAML = "application/yaml"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
REQUEST_SECONDS = 30.0


@dataclass(frozen=True)
class Server:
    """A server to test.

    Attributes:
        url: The base URL.
        headers: What authenticates a cluster administrator.
        verify: How to check the server's certificate.
        compaction: Where an emulator is asked to forget history; None on a real server.
    """

    url: str
    headers: dict[str, str]
    verify: ssl.SSLContext | bool = True
    compaction: str | None = None


@dataclass(frozen=True)
class Reply:
    """An answer; the properties are those of a Kubernetes object."""

    status: int
    body: Any
    text: str
    headers: httpx.Headers
    seconds: float

    @property
    def meta(self) -> JsonObject:
        return self.body["metadata"]

    @property
    def spec(self) -> JsonObject:
        return self.body["spec"]

    @property
    def kind(self) -> str:
        return self.body["kind"]

    @property
    def rv(self) -> str:
        return self.meta["resourceVersion"]

    @property
    def items(self) -> list[JsonObject]:
        return self.body["items"]

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.items]

    @property
    def reason(self) -> str | None:
        return self.body.get("reason")

    @property
    def message(self) -> str:
        return self.body["message"]

    @property
    def details(self) -> JsonObject:
        return self.body.get("details", {})

    @property
    def causes(self) -> list[tuple[str, str]]:
        return [(cause.get("field", ""), cause["reason"]) for cause in self.details["causes"]]

    @property
    def failed(self) -> tuple[int, str | None]:
        """Code and reason of a Status; both the HTTP status and the document tell the code."""
        assert self.kind == "Status", self.text
        assert self.body["status"] == "Failure"
        assert self.body["code"] == self.status
        return self.status, self.reason

    @property
    def managers(self) -> list[tuple[str, str, str | None]]:
        entries = self.meta.get("managedFields", [])
        return [(e["manager"], e["operation"], e.get("subresource")) for e in entries]

    def owned(self, manager: str) -> JsonObject:
        """The fields of a manager, as a tree."""
        (fields,) = [e["fieldsV1"] for e in self.meta["managedFields"] if e["manager"] == manager]
        return fields


@dataclass
class Stream:
    """The response of a watch, with the events received so far."""

    status: int
    headers: httpx.Headers
    events: list[JsonObject] = field(default_factory=list[JsonObject])
    ended: bool = False

    @property
    def changes(self) -> list[str]:
        """The events as TYPE:name."""
        return [f"{e['type']}:{e['object']['metadata'].get('name')}" for e in self.events]

    @property
    def metas(self) -> list[JsonObject]:
        return [event["object"]["metadata"] for event in self.events]


class Api:
    """Sends requests to one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.Client(
            base_url=server.url,
            headers=server.headers,
            verify=server.verify,
            timeout=REQUEST_SECONDS,
        )

    def call(self, method: str, path: str, body: Any = None, **options: str) -> Reply:
        """Send a request; `content` and `accept` are headers, other options query parameters."""
        headers = {"Content-Type": options.pop("content", JSON)}
        if "accept" in options:
            headers["Accept"] = options.pop("accept")
        if body is None or not headers["Content-Type"]:
            del headers["Content-Type"]
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        query = {name.rstrip("_"): value for name, value in options.items()}
        start = time.monotonic()
        response = self.http.request(method, path, content=data, headers=headers, params=query)
        seconds = time.monotonic() - start
        json_like = response.headers.get("content-type", "").startswith(JSON)
        parsed = response.json() if json_like and response.content else None
        return Reply(response.status_code, parsed, response.text, response.headers, seconds)

    def get(self, path: str, **options: str) -> Reply:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any, **options: str) -> Reply:
        return self.call("POST", path, body, **options)

    def put(self, path: str, body: Any, **options: str) -> Reply:
        return self.call("PUT", path, body, **options)

    def delete(self, path: str, body: Any = None, **options: str) -> Reply:
        return self.call("DELETE", path, body, **options)

    def merge(self, path: str, body: Any, **options: str) -> Reply:
        return self.call("PATCH", path, body, content=MERGE, **options)

    def json_patch(self, path: str, *operations: JsonObject, **options: str) -> Reply:
        return self.call("PATCH", path, list(operations), content=JSON_PATCH, **options)

    def strategic(self, path: str, body: Any, **options: str) -> Reply:
        return self.call("PATCH", path, body, content=STRATEGIC, **options)

    def apply(self, path: str, body: Any, manager: str, **options: str) -> Reply:
        return self.call("PATCH", path, body, content=APPLY, fieldManager=manager, **options)

    def watch(self, path: str, count: int = 0, silence: float = 0.3, /, **options: str) -> Stream:
        """Read a watch until it has sent `count` events, is silent for so long, or ends.

        With a count, silence is waited out for as long as a request may take.
        """
        headers = {"Accept": options.pop("accept")} if "accept" in options else {}
        query = {"watch": "1", **options}
        timeout = httpx.Timeout(REQUEST_SECONDS, read=REQUEST_SECONDS if count else silence)
        with self.http.stream(
            "GET", path, params=query, headers=headers, timeout=timeout
        ) as response:
            stream = Stream(response.status_code, response.headers)
            try:
                for line in response.iter_lines():
                    stream.events.append(json.loads(line))
                    if count and len(stream.events) >= count:
                        return stream
                stream.ended = True
            except httpx.ReadTimeout:
                pass
            return stream

    def compact(self) -> None:
        """Make the server forget everything that came before."""
        assert self.server.compaction is not None
        assert httpx.post(self.server.compaction, json={"watches": True}).status_code == 200

    @contextmanager
    def watching(self, path: str, **options: str) -> Generator[Iterator[JsonObject]]:
        """The events of a watch that stays open, one by one."""
        query = {"watch": "1", **options}
        with self.http.stream("GET", path, params=query) as response:
            assert response.status_code == 200
            yield (json.loads(line) for line in response.iter_lines())


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Ask until the answer is true; returns it.

    Raises:
        AssertionError: The time is over.
    """
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)  # between two questions
    return answer
