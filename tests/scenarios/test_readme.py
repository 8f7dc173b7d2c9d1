"""The code that README shows is what it says: the example, its test, and the rendered objects."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import yaml

from fleetbus_distributor.render.customize import render_for
from fleetbus_distributor.render.spec import read_spec
from fleetbus_distributor.render.template import Context

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_controller_is_the_example():
    example = ROOT / "examples" / "helloworld" / "controller.py"
    controller, _ = _blocks("python")
    _, _, code = example.read_text(encoding="utf-8").partition("\n\n")
    assert controller == code


async def test_the_test_of_the_controller_passes(tmp_path: Path):
    file = tmp_path / "test_hello.py"
    file.write_text("\n".join(_blocks("python")), encoding="utf-8")
    await runpy.run_path(str(file))["test_it_greets"]()


def test_the_multi_cluster_resource_differs_by_cluster():
    (manifest,) = _blocks("yaml")
    spec = read_spec(yaml.safe_load(manifest))
    data: dict[str, Any] = {}
    for name in ("eu1", "us1"):
        (rendered,), warnings = render_for(spec, Context(name, {"role": "member"}, spec.vars))
        data[name] = rendered["data"]
        assert not warnings
    assert data == {
        "eu1": {"greeting": "hello from eu1", "currency": "EUR"},
        "us1": {"greeting": "hello from us1"},
    }
