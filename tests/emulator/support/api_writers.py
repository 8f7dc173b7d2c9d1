"""Random writes of all kinds to ConfigMaps and widgets, as requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from emulator.support.kube_calls import APPLY, JSON_PATCH, MERGE, STRATEGIC

if TYPE_CHECKING:
    from random import Random

JsonObject = dict[str, Any]
NAMES = ("a", "b", "c", "d.e", "f")
NAMESPACES = ("default", "default", "kube-public")
MANAGERS = ("ann", "bob", "cyd")
HOLD = "example.com/hold"
MISSING = ("x", "y", "z")


@dataclass(frozen=True)
class Kind:
    """A kind to write to, and what its objects consist of."""

    api_version: str
    kind: str
    plural: str

    @property
    def custom(self) -> bool:
        return self.kind == "Widget"

    def collection(self, namespace: str | None) -> str:
        root = f"/apis/{self.api_version}" if "/" in self.api_version else "/api/v1"
        place = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{place}/{self.plural}"


CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps")
WIDGETS = Kind("example.com/v1", "Widget", "widgets")
WIDGETS_BETA = Kind("example.com/v1beta1", "Widget", "widgets")
KINDS = (CONFIG_MAPS, WIDGETS, WIDGETS_BETA)


@dataclass(frozen=True)
class Sent:
    """A request."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    content: str = "application/json"


class Writers:
    """Makes up requests; `seen` keeps what was read, so that some writes come with old versions."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.seen: dict[str, JsonObject] = {}
        changes = {
            self._put: 4,
            self._merge: 5,
            self._json_patch: 2,
            self._strategic: 2,
            self._apply: 5,
            self._delete: 5,
            self._let_go: 3,
            self._status: 2,
            self._delete_some: 0.3,
        }
        self._changes, self._weights = list(changes), list(changes.values())

    def write(self) -> Sent:
        """The next write; it may well be refused."""
        random = self._random
        kind, namespace = random.choice(KINDS), random.choice(NAMESPACES)
        collection = kind.collection(namespace)
        path = f"{collection}/{random.choice(NAMES)}"
        paths = [path_seen for path_seen in self.seen if path_seen.startswith(collection)]
        if random.random() < 0.25 or not paths:
            request = self._create(kind, path)
        else:
            if random.random() < 0.95:
                path = random.choice(paths)
            request = random.choices(self._changes, self._weights)[0](kind, path)
        query = {"fieldManager": random.choice(MANAGERS), **request.query}
        if random.random() < 0.06:
            query["dryRun"] = "All"
        body = request.body
        if "dryRun" in query and request.method == "DELETE" and body:
            # The options in the query count only where there is no body.
            body = orjson.dumps({**orjson.loads(body), "dryRun": ["All"]})
        return Sent(request.method, request.path, query, body, request.content)

    def note(self, sent: Sent, document: JsonObject) -> None:
        """Remember an object that answered a request and is stored."""
        if "dryRun" in sent.query:
            return
        path = sent.path.removesuffix("/status")
        if sent.method == "POST":
            path = f"{path}/{document['metadata']['name']}"
        self.seen[path] = document

    def _object(self, kind: Kind, path: str, **meta: Any) -> JsonObject:
        name = path.rpartition("/")[2]
        labels = {"l": self._random.choice(("x", "y"))} if self._random.random() < 0.7 else {}
        metadata = {"name": name, **({"labels": labels} if labels else {}), **meta}
        head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        return {**head, **self._content(kind)}

    def _content(self, kind: Kind) -> JsonObject:
        random = self._random
        if not kind.custom:
            keys = random.sample(MISSING, k=random.choice((0, 1, 2)))
            return {"data": {key: str(random.randrange(3)) for key in keys}}
        names = random.sample(MISSING, k=random.choice((0, 1, 2)))
        items = [{"name": name, "value": str(random.randrange(3))} for name in names]
        return {"spec": {"size": random.randrange(1, 4), "items": items}}

    def _create(self, kind: Kind, path: str) -> Sent:
        metadata = {"finalizers": [HOLD]} if self._random.random() < 0.3 else {}
        body = self._object(kind, path, **metadata)
        if self._random.random() < 0.1:
            del body["metadata"]["name"]
            body["metadata"]["generateName"] = "g-"
        return Sent("POST", path.rpartition("/")[0], body=orjson.dumps(body))

    def _put(self, kind: Kind, path: str) -> Sent:
        old = self.seen.get(path)
        if old is None or self._random.random() < 0.2:
            return Sent("PUT", path, body=orjson.dumps(self._object(kind, path)))
        if self._random.random() < 0.2:
            return Sent("PUT", path, body=orjson.dumps(old))  # nothing new, or an old version
        labels = {"labels": {"l": self._random.choice(("x", "y"))}}
        new = {**old, **self._content(kind), "metadata": {**old["metadata"], **labels}}
        return Sent("PUT", path, body=orjson.dumps(new))

    def _patch(self) -> JsonObject:
        random = self._random
        label = random.choice(("x", "y", None, "z"))
        return random.choice(({"metadata": {"labels": {"l": label}}}, {}))

    def _merge(self, kind: Kind, path: str) -> Sent:
        patch = {**self._patch(), **self._content(kind)}
        if not kind.custom and self._random.random() < 0.5:
            patch = self._patch()
        return Sent("PATCH", path, body=orjson.dumps(patch), content=MERGE)

    def _strategic(self, kind: Kind, path: str) -> Sent:
        patch = {**self._patch(), **self._content(kind)}
        return Sent("PATCH", path, body=orjson.dumps(patch), content=STRATEGIC)

    def _json_patch(self, _kind: Kind, path: str) -> Sent:
        value = self._random.choice(("x", "y"))
        operations = self._random.choice(
            (
                [{"op": "add", "path": "/metadata/labels", "value": {"l": value}}],
                [{"op": "replace", "path": "/metadata/labels/l", "value": value}],
                [{"op": "remove", "path": "/metadata/labels/l"}],
                [{"op": "test", "path": "/metadata/labels/l", "value": "x"}],
            )
        )
        return Sent("PATCH", path, body=orjson.dumps(operations), content=JSON_PATCH)

    def _apply(self, kind: Kind, path: str) -> Sent:
        query = {"force": "true"} if self._random.random() < 0.5 else {}
        body = orjson.dumps(self._object(kind, path))
        return Sent("PATCH", path, query, body, APPLY)

    def _delete(self, _kind: Kind, path: str) -> Sent:
        old = self.seen.get(path)
        if old is None or self._random.random() < 0.7:
            return Sent("DELETE", path)
        names = self._random.choice((["uid"], ["resourceVersion"], ["uid", "resourceVersion"]))
        preconditions = {name: old["metadata"][name] for name in names}
        return Sent("DELETE", path, body=orjson.dumps({"preconditions": preconditions}))

    def _let_go(self, _kind: Kind, path: str) -> Sent:
        body = orjson.dumps({"metadata": {"finalizers": None}})
        return Sent("PATCH", path, body=body, content=MERGE)

    def _status(self, kind: Kind, path: str) -> Sent:
        if not kind.custom:
            return self._merge(kind, path)
        body = orjson.dumps({"status": {"replicas": self._random.randrange(3)}})
        return Sent("PATCH", f"{path}/status", body=body, content=MERGE)

    def _delete_some(self, _kind: Kind, path: str) -> Sent:
        selector = self._random.choice(("l=x", "l", "!l"))
        return Sent("DELETE", path.rpartition("/")[0], {"labelSelector": selector})
