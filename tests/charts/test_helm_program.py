"""The helm program (version 3) lints, renders and refuses as the library (version 4) does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.api.rendered_chart import CHART, SEED, VALUES, Object, render
from support.api.wrong_values import WRONG
from support.full import FULL
from support.processes.helm import Helm, helm_program

RANDOM = "made anew by each rendering"
TRIED = VALUES if FULL else ["everything", "examples/ha.yaml"]
"""All of them in `make scenarios`."""

pytestmark = pytest.mark.longer


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return helm_program(tmp_path)


def seeded(name: str) -> Object:
    return {**VALUES[name], "credentials": {"seed": SEED}}


def without_certificates(objects: list[Object]) -> dict[tuple[str, ...], Object]:
    """The objects by what names them, with certificates replaced."""
    by_name: dict[tuple[str, ...], Object] = {}
    for obj in json.loads(json.dumps(objects)):
        if obj.get("type") == "kubernetes.io/tls":
            obj["data"] = dict.fromkeys(obj["data"], RANDOM)
        for field in ("stringData", "data"):
            if "ca.crt" in (obj.get(field) or {}):
                obj[field]["ca.crt"] = RANDOM
        meta: dict[str, Any] = obj["metadata"]
        by_name[obj["kind"], meta.get("namespace", ""), meta["name"]] = obj
    return by_name


@pytest.mark.parametrize("name", TRIED)
def test_it_finds_nothing_to_complain_about(helm: Helm, name: str):
    output = helm.done("lint", "--strict", CHART, values=seeded(name))
    assert "1 chart(s) linted, 0 chart(s) failed" in output


@pytest.mark.parametrize("name", TRIED)
def test_it_renders_what_the_library_renders(helm: Helm, name: str):
    text = helm.done("template", "fb", CHART, values=seeded(name))
    rendered = [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
    assert without_certificates(rendered) == without_certificates(render(seeded(name)))


@pytest.mark.parametrize(
    ("values", "message"), WRONG[::10], ids=[message for _, message in WRONG[::10]]
)
def test_it_refuses_wrong_values_and_names_them(helm: Helm, values: Object, message: str):
    status, answer = helm.run("template", "fb", CHART, values=values)
    assert status
    assert message in answer
