"""Commands show objects that members have filled with what terminals obey (rule S11)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fleetbus.process import printer
from fleetbus_cli import kubectl
from support.processes.in_process_commands import fleetbus
from support.rigs.query_api import Ended

if TYPE_CHECKING:
    from pathlib import Path

    from support.rigs.query_api import QueryApi

EVIL = "\x1b]0;owned\x07\x1b[2K\r\x9b31m\x7f\u202egpj\u2066\u200b\nforged   row"
TREE: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"labels": {"app": EVIL, EVIL: "x"}, "annotations": {EVIL: EVIL}},
    "spec": {"nodeName": EVIL, "containers": [{"name": EVIL, "image": EVIL}]},
    "status": {
        "phase": EVIL,
        "podIP": EVIL,
        "reason": EVIL,
        "message": EVIL,
        "containerStatuses": [
            {"name": EVIL, "ready": False, "state": {"waiting": {"reason": EVIL}}}
        ],
    },
}
FORMS = (
    ("get", "pods"),
    ("get", "pods", "-o", "wide", "--show-labels"),
    ("get", "pods", "-o", "name"),
    ("get", "pods", "-o", "json"),
    ("get", "pods", "-o", "yaml"),
    ("get", "pods", "-o", "jsonpath={.items[*].metadata.annotations}{.items[*].spec.nodeName}"),
    ("get", "pods", "-o", "custom-columns=NODE:.spec.nodeName,ALL:.metadata.annotations"),
    ("get", "events"),
    ("describe", "pods", "web"),
    ("clusters",),
    ("clusters", "show", "c1"),
    ("api-resources",),
    ("get", "pods", "--cluster", EVIL),
    ("get", "pods", EVIL),
    ("get", EVIL),
)


def call(argv: tuple[str, ...]) -> int:
    try:
        return fleetbus(*argv)
    except Exception as e:  # noqa: BLE001 -- as the program does at the top
        printer.note(f"fleetbus: {e}")
        return 2


@pytest.fixture
async def fleet(api: QueryApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> QueryApi:
    monkeypatch.setenv("FLEETBUS_API_URL", api.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")  # what has ESC then is not ours
    monkeypatch.setattr(printer, "is_terminal", lambda: True)
    await api.add_cluster("c1", hub=True, server_version=EVIL)
    await api.add("c1", "core/pods", "web", **TREE)
    return api


def is_harmless(text: str) -> bool:
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


@pytest.mark.usefixtures("fleet")
async def test_s11_no_form_of_any_command_commands_the_terminal(
    capsys: pytest.CaptureFixture[str],
):
    for words in FORMS:
        capsys.readouterr()
        ended = Ended.read(await asyncio.to_thread(call, words), capsys)
        assert is_harmless(ended.out), (words, ended.out)
        assert is_harmless(ended.err), (words, ended.err)
        if "jsonpath" not in str(words) and "yaml" not in words and "json" not in words:
            forged = [row for row in ended.out.splitlines() if row.startswith("forged")]
            assert not forged, words


@pytest.mark.usefixtures("fleet")
async def test_s11_json_and_yaml_hold_the_values(capsys: pytest.CaptureFixture[str]):
    documents: dict[str, Any] = {}
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        capsys.readouterr()
        await asyncio.to_thread(call, ("get", "pods", "web", "-o", form))
        documents[form] = read(capsys.readouterr().out)
    (item,) = documents["json"]["items"]
    assert item["object"]["spec"]["nodeName"] == EVIL
    assert documents["yaml"]["metadata"]["annotations"] == {EVIL: EVIL}


@pytest.mark.usefixtures("fleet")
async def test_s11_the_plugin_of_kubectl_neither(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for words in (["list", "pods"], ["list", "pods", "-o", "wide"], ["describe", "pods"]):
        monkeypatch.setattr("sys.argv", ["kubectl-multicluster", *words])
        capsys.readouterr()
        with contextlib.suppress(SystemExit):
            await asyncio.to_thread(kubectl.main)
        ended = capsys.readouterr()
        assert is_harmless(ended.out + ended.err), words
