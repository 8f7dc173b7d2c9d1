"""Writes the answers of client-go to the cases, which ordinary tests compare ours with.

    python tests/run.py support.client_go.goldens

It needs Go and the modules of `tests/bench/peers/informer/go.mod`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from support.client_go.jsonpaths import OBJECT, templates
from support.client_go.kubeconfigs import FOLDER, Case, cases
from support.processes.go_informer import find_go_program

KUBECONFIGS: Final = Path(__file__).parent / "kubeconfigs.json"
"""The answers by the names of the cases."""
JSONPATHS: Final = Path(__file__).parent / "jsonpaths.json"
"""The answers by the templates."""


def ask_client_go(program: Path, asked: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """The answer of client-go to each case, by its name."""
    with tempfile.TemporaryDirectory() as root:
        questions: list[dict[str, Any]] = []
        for i, case in enumerate(asked):
            folder = Path(root, str(i))
            folder.mkdir()
            questions.append({"path": str(case.write(folder)), "env": case.env})
        output = subprocess.run(
            [str(program)],
            input=json.dumps(questions),
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        ).stdout
        answers = [
            json.loads(json.dumps(answer).replace(str(Path(root, str(i))), FOLDER))
            for i, answer in enumerate(json.loads(output))
        ]
    return {case.name: answer for case, answer in zip(asked, answers, strict=True)}


def render_with_client_go(program: Path) -> dict[str, dict[str, str]]:
    """The text or the error of client-go for each JSONPath template and `OBJECT`."""
    texts = templates()
    question = {
        "objects": {"web": OBJECT},
        "cases": [{"text": text, "object": "web"} for text in texts],
    }
    output = subprocess.run(
        [str(program)],
        input=json.dumps(question),
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout
    return dict(zip(texts, json.loads(output), strict=True))


def main() -> None:
    """Write the answers."""
    kubeconfigs, jsonpaths = find_go_program("kubeconfig"), find_go_program("jsonpath")
    assert kubeconfigs is not None, "needs Go and its modules"
    assert jsonpaths is not None, "needs Go and its modules"
    _write(KUBECONFIGS, ask_client_go(kubeconfigs, cases()))
    _write(JSONPATHS, render_with_client_go(jsonpaths))


def _write(path: Path, answers: object) -> None:
    path.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
