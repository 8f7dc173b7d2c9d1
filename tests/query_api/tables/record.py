"""Writes the columns and cells of `tables-1.34.1.jsonl` anew, from the printers of kube-apiserver.

usage: python record.py PRINTER < tables-1.34.1.jsonl > new.jsonl

PRINTER is `printer.go`, built in a module that requires k8s.io/kubernetes v1.34.1 and replaces its
staging modules (k8s.io/api and others) with v0.34.1. To record another object, add a line with its
`resource` and `object` first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def main(printer: str) -> None:
    """Read lines, and print them with the columns and cells that the printer gives."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in sys.stdin]
    rows = [line for line in lines if "object" in line]
    asked = "".join(f"{json.dumps(row['object'])}\n" for row in rows)
    done = subprocess.run([printer], input=asked, capture_output=True, text=True, check=True)
    answers: list[dict[str, Any]] = [json.loads(line)["table"] for line in done.stdout.splitlines()]
    columns = {
        row["resource"]: [
            [c["name"], c["type"], c["format"], c["priority"]] for c in answer["columnDefinitions"]
        ]
        for row, answer in zip(rows, answers, strict=True)
    }
    for resource, found in columns.items():
        sys.stdout.write(_line({"resource": resource, "columns": found}))
    for row, answer in zip(rows, answers, strict=True):
        sys.stdout.write(_line({**row, "cells": answer["rows"][0]["cells"]}))


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    main(sys.argv[1])
