"""An API server that has pods, sends canned events, and then is silent.

python tests/run.py bench.programs.canned_apiserver OBJECTS EVENTS PORT_FILE
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.rig.pods import pod

_HOST = "127.0.0.1"
_PAGE = 500


class Server:
    """The pods, the events, and how often it was asked for them."""

    def __init__(self, objects: int, events: int) -> None:
        self._objects = objects
        lines = [
            b'{"type":"MODIFIED","object":' + pod(index % 500, 10**9 + index) + b"}\n"
            for index in range(events)
        ]
        self._chunks = [b"".join(lines[at : at + 50]) for at in range(0, events, 50)]
        self._asked = {"lists": 0, "probes": 0, "watches": 0}

    async def run(self, port_file: Path) -> None:
        runner = web.ServerRunner(web.Server(self._answer), handle_signals=True)
        await runner.setup()
        await web.TCPSite(runner, _HOST, 0).start()
        port_file.write_text(str(runner.addresses[0][1]))
        await asyncio.Event().wait()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        query = request.query
        if request.path == "/asked":
            return web.json_response(self._asked)
        if request.path == "/api/v1/pods" and "watch" in query:
            self._asked["watches"] += 1
            return await self._watch(request)
        if request.path == "/api/v1/pods":
            limit, start = int(query.get("limit") or _PAGE), int(query.get("continue") or 0)
            self._note_list(limit)
            return web.Response(body=self._list(start, limit))
        return web.json_response(_DOCUMENTS[request.path])

    def _note_list(self, limit: int) -> None:
        self._asked["lists" if limit > 1 else "probes"] += 1

    def _list(self, start: int, limit: int) -> bytes:
        end = min(start + limit, self._objects)
        token = str(end) if end < self._objects else ""
        metadata = {"resourceVersion": str(10**9), "continue": token}
        head = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata}
        items = [pod(index, index + 1).partition(b'"v1",')[2] for index in range(start, end)]
        opened = b",".join(b"{" + item for item in items)
        return json.dumps(head).encode()[:-1] + b',"items":[' + opened + b"]}"

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in self._chunks:
            await response.write(chunk)
        await asyncio.Event().wait()
        return response


_DOCUMENTS: dict[str, Any] = {
    "/version": {"gitVersion": "v1.33.0"},
    "/api/v1/namespaces/kube-system": {"metadata": {"name": "kube-system", "uid": "u"}},
    "/apis": {"groups": []},
    "/api/v1": {
        "resources": [
            {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["get", "list", "watch"]}
        ]
    },
}


if __name__ == "__main__":
    asyncio.run(Server(int(sys.argv[1]), int(sys.argv[2])).run(Path(sys.argv[3])))
