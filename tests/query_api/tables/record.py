"""Records the tables and the names of Kubernetes' own types, from its printers and its sources.

    python tests/run.py query_api.tables.record

After an upgrade of `printer/go.mod` this writes the recordings anew; read the difference, and mend
`fleetbus_query_api/tables/builtin`. A new kind needs objects in `samples.jsonl` first. Go builds
the printers, which takes 10 minutes once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from query_api.tables.corpus import SAMPLES, Tree, pods, samples, variants
from query_api.tables.recorded import TABLES, without_ages
from query_api.tables.registry_names import registry_names

HERE: Final = Path(__file__).parent
NAMES: Final = HERE.parents[1] / "sdk/kube/resource-names-1.37.2.json"


class GoMissingError(Exception):
    """The printers cannot be built; the message says what to install."""


def main() -> None:
    """Write the recordings."""
    printer = build_printer()
    _write_names()
    _write_lines(SAMPLES, _whole_samples(printer))
    _write_lines(TABLES, recordings(printer))


def build_printer() -> Path:
    """Build `printer/main.go`, unless it is built.

    Raises:
        GoMissingError: there is no Go, or the build failed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fleetbus")
    program = cache / "kubernetes-printer"
    cache.mkdir(parents=True, exist_ok=True)
    command = ["go", "build", "-o", str(program), "."]
    try:
        subprocess.run(command, cwd=HERE / "printer", check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise GoMissingError(
            "install Go 1.26 or newer to compare with Kubernetes' printers"
        ) from None
    except subprocess.CalledProcessError as e:
        raise GoMissingError(f"the printers were not built: {e.stderr[-2000:]}") from None
    return program


def recordings(printer: Path) -> Iterable[Tree]:
    """The lines of the recording: per resource its columns, and then the cells of its objects."""
    for resource, objects in samples().items():
        answers = _ask(printer, [{"object": each} for each in objects])
        listed = _ask(printer, [{"list": objects}])[0]["rows"]
        columns = [
            [each["name"], each["type"], each["format"], each["priority"]]
            for each in answers[0]["columns"]
        ]
        yield {"resource": resource, "columns": columns}
        for sample, answer, row in zip(objects, answers, listed, strict=True):
            cells = answer["rows"][0]
            recording = {"resource": resource, "name": sample["metadata"]["name"], "cells": cells}
            if row != cells:
                recording["inList"] = row
            yield recording | _variants(printer, sample, cells)
    answers = _ask(printer, [{"object": each} for each in pods()])
    yield {"pods": [without_ages(each["rows"][0][1:]) for each in answers]}


def _variants(printer: Path, sample: Tree, cells: list[Any]) -> Tree:
    """Changes of an object that change its row, and those that leave no object a server sends."""
    names: list[str] = []
    questions: list[str] = []
    for name, changed in variants(sample):
        names.append(name)
        questions.append(json.dumps({"object": changed}))
    changes: Tree = {}
    unsent: list[str] = []
    for name, answer in zip(names, _ask_lines(printer, questions), strict=True):
        if not answer["sent"]:
            unsent.append(name)
            continue
        row = answer["rows"][0]
        differences = {str(i): cell for i, cell in enumerate(row) if cell != cells[i]}
        if differences:
            changes[name] = differences
    return {"changes": changes, "unsent": unsent}


def _whole_samples(printer: Path) -> Iterable[Tree]:
    """The samples with all defaults, as servers send them."""
    for resource, objects in samples().items():
        for answer in _ask(printer, [{"object": each, "whole": True} for each in objects]):
            yield {"resource": resource, "object": answer["object"]}


def _ask(printer: Path, questions: list[Tree]) -> list[Tree]:
    return _ask_lines(printer, [json.dumps(each) for each in questions])


def _ask_lines(printer: Path, questions: list[str]) -> list[Tree]:
    text = "".join(f"{each}\n" for each in questions)
    done = subprocess.run([printer], input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _write_names() -> None:
    modules = ("k8s.io/kubernetes", "k8s.io/apiextensions-apiserver", "k8s.io/kube-aggregator")
    command = ["go", "list", "-m", "-f", "{{.Dir}}", *modules]
    done = subprocess.run(command, cwd=HERE / "printer", check=True, capture_output=True, text=True)
    names = registry_names(*map(Path, done.stdout.splitlines()))
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in names.items())
    NAMES.write_text(f"{{\n{lines}\n}}\n")


def _write_lines(file: Path, lines: Iterable[Tree]) -> None:
    rendered = [json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines]
    file.write_text("".join(f"{line}\n" for line in rendered), "utf-8")


if __name__ == "__main__":
    try:
        main()
    except GoMissingError as e:
        sys.exit(str(e))
