"""Writes what client-go makes of the cases, which ordinary tests compare ours with.

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

from support.client_go.kubeconfigs import FOLDER, Case, cases
from support.processes.go_informer import find_go_program

KUBECONFIGS: Final = Path(__file__).parent / "kubeconfigs.json"
"""The answers by the names of the cases."""


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


def main() -> None:
    """Write the answers."""
    program = find_go_program("kubeconfig")
    assert program is not None, "needs Go and its modules"
    answers = ask_client_go(program, cases())
    KUBECONFIGS.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
