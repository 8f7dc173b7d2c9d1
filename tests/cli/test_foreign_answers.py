"""Commands name a server that is no query API, and an address that is none, in one line."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleetbus.errors import ConfigError, FleetbusError
from fleetbus_cli import kubectl
from fleetbus_cli.answer_shapes import SHAPES, ByStage, Each, Maybe, Some, misfit, shape_of
from fleetbus_cli.api_url import split_api_url
from fleetbus_query_api.history.models import (
    ChangesModel,
    DeletedListModel,
    HistoryModel,
    TimelineModel,
)
from fleetbus_query_api.responses.openapi import (
    AnswerModel,
    ClusterDetailModel,
    ClusterListModel,
    ListModel,
)
from support.processes.in_process_commands import fleetbus
from support.rows import each_row

COMMANDS = (
    ("get", "pods"),
    ("get", "all"),
    ("get", "pods", "web"),
    ("get", "pods", "-o", "json"),
    ("get", "pods", "-o", "yaml"),
    ("get", "pods", "-o", "name"),
    ("get", "pods", "--deleted"),
    ("get", "pods", "--as-of", "5m"),
    ("describe", "pods", "web"),
    ("clusters",),
    ("clusters", "show", "c1"),
    ("api-resources",),
    ("api-resources", "-o", "name"),
    ("diff",),
    ("timeline", "c1", "pods", "prod/web"),
    ("restore", "-n", "prod"),
    ("kubeconfig",),
)
PLUGIN = (("list", "pods"), ("list", "clusters"), ("describe", "pods"), ("unjoin", "c1"))
ODD = (
    *("{}", "[]", "5", "null", '"text"', '{"hello": "world"}', '{"items": 5}', '{"items": [5]}'),
    *('{"items": [{}]}', '{"items": [[]], "freshness": []}', '{"items": null, "incomplete": 1}'),
    '{"kind": "Status", "message": "x"}',
)
MODELS: Mapping[str, type[AnswerModel]] = {
    "/fleet/v1/resources/": ListModel,
    "/fleet/v1/clusters": ClusterListModel,
    "/fleet/v1/clusters/": ClusterDetailModel,
    "/fleet/v1/history": HistoryModel,
    "/fleet/v1/deleted/": DeletedListModel,
    "/fleet/v1/timeline/": TimelineModel,
    "/fleet/v1/changes": ChangesModel,
}


@pytest.fixture
def foreign() -> Iterator[tuple[str, list[bytes]]]:
    """A server that has one answer to everything; yields its address and the answer."""
    answer = [b""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer[0])

        do_POST = do_DELETE = do_GET  # noqa: N815 -- as the library calls them

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", answer
        server.shutdown()
        thread.join()


def run(argv: tuple[str, ...]) -> str:
    """Run a command; the text of its error, empty if it ended by itself."""
    try:
        fleetbus(*argv)
    except FleetbusError as e:
        return str(e)
    return ""


def test_json_of_another_server_is_named_by_every_command(
    foreign: tuple[str, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
):
    url, answer = foreign
    monkeypatch.setenv("FLEETBUS_API_URL", url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for odd in ODD:
        answer[0] = odd.encode() + b"\n"
        for command in COMMANDS:
            text = run(command) + capsys.readouterr().err
            assert "is not a fleetbus query API" in text, (command, odd, text)
        for command in PLUGIN:
            assert kubectl.main(command) == 1
            assert "is not a fleetbus query API" in capsys.readouterr().err, (command, odd)


def test_an_answer_that_is_nested_without_end_is_an_error(
    foreign: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Any
):
    url, answer = foreign
    monkeypatch.setenv("FLEETBUS_API_URL", url)
    monkeypatch.setenv("HOME", str(tmp_path))
    answer[0] = b"[" * 100_000
    for command in (("clusters",), ("get", "pods"), ("get", "pods", "-o", "json")):
        assert run(command) + capsys.readouterr().err


def example(  # noqa: PLR0911 -- a row of cases
    schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> Any:
    """A value that has a JSON schema, with every required field."""
    if "$ref" in schema:
        return example(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], definitions)
    match schema.get("type"):
        case "object" if "properties" in schema:
            return {
                name: example(part, definitions)
                for name, part in schema["properties"].items()
                if name in schema.get("required", ())
            }
        case "object":
            below: Any = schema.get("additionalProperties")
            return {"c1": example(below, definitions)} if below not in (None, True) else {}
        case "array":
            return [example(schema["items"], definitions)]
        case kind:
            return {"string": "x", "integer": 1, "number": 1.5, "boolean": True}.get(kind or "")


def nullable(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """The same, with null wherever a field may be null."""
    if "$ref" in schema:
        return nullable(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if {"type": "null"} in schema.get("anyOf", ()):
        return None
    if "properties" in schema:
        return {
            name: nullable(part, definitions)
            for name, part in schema["properties"].items()
            if name in schema.get("required", ())
        }
    if schema.get("type") == "array":
        return [nullable(schema["items"], definitions)]
    return example(schema, definitions)


@pytest.mark.parametrize("path", MODELS)
def test_what_the_query_api_answers_has_the_shapes(path: str):
    schema = MODELS[path].model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for make in (example, nullable):
        answer = make(schema, definitions)
        assert misfit(answer, SHAPES[path]) is None
        for name in SHAPES[path]:
            if name[-1] != "?":
                broken = copy.deepcopy(answer)
                del broken[name]
                assert misfit(broken, SHAPES[path]) == f".{name}"


def test_shapes_of_paths():
    assert shape_of("/fleet/v1/clusters") is SHAPES["/fleet/v1/clusters"]
    assert shape_of("/fleet/v1/clusters/a") is SHAPES["/fleet/v1/clusters/"]
    assert shape_of("/elsewhere") is object


@each_row(
    ("value", "shape", "where"),
    [
        ({"a": [{"b": 1}]}, {"a": [{"b": int}]}, None),
        ({"a": [{"b": "x"}]}, {"a": [{"b": int}]}, ".a[0].b"),
        ({}, {"a?": int}, None),
        ({"a": None}, {"a?": int}, ".a"),
        ({"a": None}, {"a": Maybe(int)}, None),
        ({}, {"a": Maybe(int)}, ".a"),
        ([], Some(int), ""),
        ({"x": 1, "y": "z"}, Each(int), ".y"),
        ({"stage": "b", "c": 1}, ByStage({"a": {"d": int}}, {"c": int}), None),
        ({"stage": "a", "c": 1}, ByStage({"a": {"d": int}}, {"c": int}), ".d"),
    ],
)
def test_the_first_misfit_is_named(value: Any, shape: Any, where: str | None):
    assert misfit(value, shape) == where


@each_row(
    "url",
    [
        *("http://[x", "http://[", "http://a:b", "http://a b", "http://127.0.0.1:99999"),
        *("http://a/?x", "http://a/#x", "http://\u202ea", "http://", "ftp://a", "a", "http://a:0"),
        *("http://a\x00", "//a"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str):
    with pytest.raises(ConfigError, match="it must be like http"):
        split_api_url(url)


def test_every_command_refuses_such_an_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setenv("FLEETBUS_API_URL", "http://[x")
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in COMMANDS:
        assert "it must be like http" in run(command), command


@each_row(
    "arguments",
    [
        ("get", "pods", "--x\u202e"),
        ("get", "pods", "--limit", "\u202e7"),
        ("ge\u202et",),
        ("clusters", "sh\u202eow"),
    ],
)
def test_s11_errors_about_the_usage_are_printable(arguments: tuple[str, ...]):
    for program in ("fleetbus", "kubectl-multicluster"):
        command = [Path(sys.executable).with_name(program), *arguments]
        ended = subprocess.run(command, capture_output=True, check=False)
        text = ended.stderr.decode()
        assert ended.returncode, text
        assert all(letter.isprintable() or letter == "\n" for letter in text), text
