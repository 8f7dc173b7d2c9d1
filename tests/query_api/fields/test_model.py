"""Questions about fields against a plain evaluation of all objects, while they change."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.kube.field_paths import FieldPath, texts_of
from fleetbus_query_api.fields.column import UNDECIDED
from fleetbus_query_api.fields.order import rank_of
from fleetbus_query_api.settings import QueryApiSettings
from support.full import FULL

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.rigs.query_api import QueryApi

_Key = tuple[str, str, str]
PATHS = (
    "status.phase",
    "spec.replicas",
    "spec.containers[*].image",
    "metadata.labels.app",
    "metadata.name",
    "spec.memory",
    "absent",
)
_VALUES: dict[str, tuple[Any, ...]] = {
    "status.phase": ("Running", "Pending", "Failed", None),
    "spec.replicas": (0, 1, 2, 10, 1.5, True, "1", None),
    "spec.memory": ("1Gi", "512Mi", "100m", "2", "x", {"a": 1}, None),
}


@pytest.fixture(params=["kept", "read", "no room"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether columns answer, or bodies that are read for each question."""
    repaid = math.inf if request.param == "read" else 0
    monkeypatch.setattr("fleetbus_query_api.fields.source.REPAID", repaid)
    if request.param == "no room":
        monkeypatch.setattr(QueryApiSettings, "columns_bytes", 64)
    monkeypatch.setattr("fleetbus_query_api.fields.source.STEP", 7)
    monkeypatch.setattr("fleetbus_query_api.fields.tables.FIRST_ROWS", 3)
    monkeypatch.setattr("fleetbus_query_api.fields.tables.CHUNK_BYTES", 900)
    return request.param


class Model:
    """The objects as they should be, and what a question about them should answer."""

    def __init__(self, api: QueryApi, seed: int) -> None:
        self.chance = random.Random(seed)
        self.api = api
        self.objects: dict[_Key, dict[str, Any] | None] = {}

    async def change(self) -> None:
        """Add, change or delete one object, or break its body."""
        key = (
            self.chance.choice(("c1", "c2", "c3")),
            self.chance.choice(("dev", "prod")),
            f"o{self.chance.randint(0, 9)}",
        )
        cluster, namespace, name = key
        if key in self.objects and self.chance.random() < 0.3:
            await self.api.remove(cluster, "core/pods", name, namespace=namespace)
            del self.objects[key]
        elif self.chance.random() < 0.1:
            await self.api.add_body(cluster, "core/pods", name, None, namespace=namespace)
            self.objects[key] = None
        else:
            self.objects[key] = await self._add(key)

    async def _add(self, key: _Key) -> dict[str, Any]:
        cluster, namespace, name = key
        pick = self.chance.choice
        spec = {field: pick(_VALUES[f"spec.{field}"]) for field in ("replicas", "memory")}
        images = [{"image": f"i{n}"} for n in range(self.chance.randint(0, 3))]
        phase = pick(_VALUES["status.phase"])
        return await self.api.add(
            cluster,
            "core/pods",
            name,
            namespace=namespace,
            labels={"app": pick(("web", "db"))} if self.chance.random() < 0.8 else {},
            spec={**spec, "containers": images},
            status={"phase": phase} if phase else {},
        )

    # --- questions ------------------------------------------------------------------------------

    def question(self) -> tuple[dict[str, str], Callable[[Any], bool]]:
        """A selector, and what it means."""
        path = self.chance.choice(PATHS)
        values = self.chance.sample(["Running", "1", "i1", "web", "o3", "1Gi", ""], k=2)
        match self.chance.randint(0, 3):
            case 0:
                text, expected, is_equal = f"{path}={values[0]}", values[:1], True
            case 1:
                text, expected, is_equal = f"{path}!={values[0]}", values[:1], False
            case 2:
                text, expected, is_equal = f"{path} in ({values[0]},{values[1]})", values, True
            case _:
                text, expected, is_equal = f"{path} notin ({values[0]},{values[1]})", values, False
        # An empty one at the end of a set is none.
        expected = [value for value in expected if value or "in (" not in text]

        def holds(tree: dict[str, Any]) -> bool:
            texts = texts_of(FieldPath.parse(path).read(tree))
            return any(one in expected for one in texts) is is_equal

        return {"fieldSelector": text}, holds

    def matching(self, holds: Callable[[Any], bool], *, keyed: bool) -> list[_Key]:
        """The objects that satisfy a selector, in the order of lists."""
        matches: list[_Key] = []
        for key, tree in self.objects.items():
            content = tree
            if tree is None and keyed:
                content = {"metadata": {"namespace": key[1], "name": key[2]}}
            if content is not None and holds(content):
                matches.append(key)
        return sorted(matches)

    def ranks(self, key: _Key, path: str, *, is_descending: bool) -> Any:
        tree = self.objects[key]
        value = UNDECIDED if tree is None else FieldPath.parse(path).read(tree)
        if path == "metadata.name":
            value = key[2]
        return rank_of(value, is_descending=is_descending)


async def listed(api: QueryApi, **query: Any) -> list[_Key]:
    """All pages of a list."""
    objects: list[_Key] = []
    token = ""
    while True:
        answer = await api.get("/fleet/v1/resources/pods", **query, **{"continue": token})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        objects += [(item["cluster"], *_names_of(item)) for item in page["items"]]
        if page["remaining"] is not None:
            assert bool(page["remaining"]) is bool(page["continue"])
        token = page["continue"]
        if not token:
            return objects


def _names_of(item: dict[str, Any]) -> tuple[str, str]:
    tree: dict[str, Any] | None = item["object"]
    identity: dict[str, Any] = item if tree is None else tree["metadata"]
    return identity["namespace"], identity["name"]


@pytest.mark.slow
@pytest.mark.longer
@pytest.mark.parametrize("seed", [1])
async def test_a4_every_answer_is_that_of_all_objects(api: QueryApi, mode: str, seed: int):
    del mode
    for cluster in ("c1", "c2", "c3"):
        await api.add_cluster(cluster, reported_ago=-600)  # it must not grow stale meanwhile
    model = Model(api, seed)
    for _ in range(40):
        await model.change()
    for _ in range(25 if FULL else 8):
        for _ in range(model.chance.randint(0, 3)):
            await model.change()
        query, holds = model.question()
        keyed = "metadata.name" in query["fieldSelector"]
        expected = model.matching(holds, keyed=keyed)
        limit = model.chance.choice((1, 4, 100))
        assert await listed(api, limit=limit, **query) == expected, query

        path, is_descending = model.chance.choice(PATHS), model.chance.random() < 0.5
        sort = f"{'-' if is_descending else ''}{path}"
        expected.sort(key=lambda key: (model.ranks(key, path, is_descending=is_descending), key))
        assert await listed(api, limit=limit, sort=sort, **query) == expected, (query, sort)

        answer = (await api.get("/fleet/v1/counts/pods", by="cluster", **query)).json()
        counts = {group["values"]["cluster"]: group["count"] for group in answer["groups"]}
        assert counts == {c: n for c in ("c1", "c2", "c3") if (n := _count(expected, c))}, query
        undecided = {key[0] for key, tree in model.objects.items() if tree is None}
        assert set(answer["incomplete"]) == (set() if keyed else undecided), query


def _count(keys: list[_Key], cluster: str) -> int:
    return sum(key[0] == cluster for key in keys)
