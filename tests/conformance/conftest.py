"""The conformance cases run against an emulated cluster, or a real one.

Without settings the server is an emulated cluster with its simulated controllers. With
FLEETBUS_TEST_KUBECONFIG, the path of a kubeconfig, it is the cluster of its first context: the
cases work in a namespace and an API group of their own, which are removed afterwards.

- `emulator`: only an emulator can pass, for example because history is compacted at will.
- `since("1.30")`: a real server older than that is not asked.
- `until("1.34")`: a real server newer than that is not asked.
- `patient`: the case waits for seconds; only `make conformance` and runs against real clusters
  have that time.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import string
from collections.abc import Generator
from pathlib import Path

import pytest

from support.api.conformance_client import Api, Server, until
from support.api.conformance_objects import Space, definition
from support.api.conformance_server import emulated, from_kubeconfig

KUBECONFIG = os.environ.get("FLEETBUS_TEST_KUBECONFIG", "")
HAS_TIME = bool(KUBECONFIG or os.environ.get("FLEETBUS_CONFORMANCE"))
MARKERS = (
    "emulator: only an emulator can pass this case",
    "since(version): real servers older than this Kubernetes version are not asked",
    "until(version): real servers newer than this Kubernetes version are not asked",
    "patient: waits for seconds; not in the default run",
)
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that take seconds, where nobody asked for them."""
    here = Path(__file__).parent
    late = [i for i in items if here in i.path.parents and i.get_closest_marker("patient")]
    if late and not HAS_TIME:
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if item not in late]


@pytest.fixture(scope="session")
def server() -> Generator[Server]:
    """The server to test."""
    if KUBECONFIG:
        yield from_kubeconfig(Path(KUBECONFIG))
        return
    with emulated() as started:
        yield started


@pytest.fixture(scope="session")
def api(server: Server) -> Generator[Api]:
    """A client with the rights of an administrator."""
    client = Api(server)
    yield client
    client.http.close()


@pytest.fixture(scope="session")
def space(api: Api) -> Generator[Space]:
    """A namespace of our own and an API group with widgets."""
    suffix = "".join(random.choices(string.ascii_lowercase, k=8))
    opened = Space(f"conformance-{suffix}", f"{suffix}.conformance.fleetbus.dev")
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    body = definition(opened.group, "widgets", "Widget", versions=("v1", "v1beta1"))
    try:
        namespace = {"metadata": {"name": opened.namespace}}
        assert api.post("/api/v1/namespaces", namespace).status == 201
        assert api.post(crds, body).status == 201
        until(lambda: api.get(opened.widgets).status == 200)
        yield opened
        for item in api.get(opened.widgets).items:
            path = f"{opened.widgets}/{item['metadata']['name']}"
            api.merge(path, {"metadata": {"finalizers": []}})
    finally:  # a real cluster keeps what we leave
        api.delete(f"{crds}/widgets.{opened.group}")
        api.delete(f"/api/v1/namespaces/{opened.namespace}")


@pytest.fixture(scope="session")
def version(api: Api) -> tuple[int, int]:
    """The Kubernetes version that the server claims to be."""
    answer = api.get("/version").body
    return int(answer["major"]), int(re.sub(r"\D", "", answer["minor"]))


@pytest.fixture(autouse=True)
def applicable(request: pytest.FixtureRequest) -> None:
    """Skip what the server at hand cannot pass."""
    if not KUBECONFIG:
        return
    if request.node.get_closest_marker("emulator"):
        pytest.skip("only an emulator can pass")
    since = request.node.get_closest_marker("since")
    if since and request.getfixturevalue("version") < _version_of(since):
        pytest.skip(f"needs Kubernetes {since.args[0]}")
    last = request.node.get_closest_marker("until")
    if last and request.getfixturevalue("version") > _version_of(last):
        pytest.skip(f"differs after Kubernetes {last.args[0]}")


def _version_of(marker: pytest.Mark) -> tuple[int, ...]:
    return tuple(int(number) for number in marker.args[0].split("."))


@pytest.fixture
def name() -> str:
    """A name that no other case has."""
    return f"case-{next(_numbers)}"
