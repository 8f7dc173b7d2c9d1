"""Programs for the commands of docs/install.md where there is no node and no registry.

`docker`, and of `kubectl` the verbs that an API server passes on to a kubelet, `exec` and `logs`;
the rest is kubectl's.

    python tests/run.py e2e.stand_ins docker|kubectl FOLDER KUBECTL ARGUMENTS...
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from support.kubelet.images import CHECKOUT, Images

_SELF = Path(__file__).parents[1] / "run.py"


def write_stand_ins(folder: Path, kubelet: Path, kubectl: Path) -> None:
    """Write programs for a PATH."""
    folder.mkdir(parents=True)
    for name in ("docker", "kubectl"):
        given = [sys.executable, _SELF, "e2e.stand_ins", name, kubelet, kubectl]
        line = " ".join(str(word) for word in given)
        (folder / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (folder / name).chmod(0o755)


def docker(folder: Path, arguments: Sequence[str]) -> None:
    """`docker build` for the kubelet of the tests; a `push` has nowhere to go."""
    parser = argparse.ArgumentParser("docker")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build")
    build.add_argument("-t", dest="name", required=True)
    build.add_argument("-f", dest="file", type=Path)
    build.add_argument("context", type=Path)
    commands.add_parser("push").add_argument("name")
    args = parser.parse_args(arguments)
    images = Images(folder)
    if args.command == "push":
        images.find(args.name)
        return
    file: Path = args.file or args.context / "Dockerfile"
    is_ours = file.resolve() == CHECKOUT / "Dockerfile"
    images.build(args.name, "FROM fleetbus" if is_ours else file.read_text(), args.context)


def kubectl(folder: Path, program: str, arguments: Sequence[str]) -> NoReturn:
    """Run kubectl, but for what needs a node."""
    parser = argparse.ArgumentParser("kubectl", add_help=False)
    parser.add_argument("-n", dest="namespace", default="default")
    flags, rest = parser.parse_known_args(_before_dashes(arguments))
    if rest[:1] == ["logs"]:
        for pod in _pods(program, flags.namespace, rest[1]):
            for log in sorted((folder / "logs" / flags.namespace / pod).glob("*.log")):
                sys.stdout.write(log.read_text())
        sys.exit(0)
    if rest[:1] == ["exec"]:
        pod = _pods(program, flags.namespace, rest[1])[0]
        (path, *_) = sorted((folder / "containers" / flags.namespace / pod).glob("*.json"))
        container = json.loads(path.read_text())
        command = [*container["enter"], *arguments[list(arguments).index("--") + 1 :]]
        os.execvpe(command[0], command, container["environment"])  # noqa: S606 -- no shell
    os.execv(program, [program, *arguments])  # noqa: S606 -- no shell


def _before_dashes(arguments: Sequence[str]) -> list[str]:
    found = list(arguments)
    return found[: found.index("--")] if "--" in found else found


def _pods(program: str, namespace: str, target: str) -> list[str]:
    """The ready pods of a Deployment, or the pod that is named."""
    kind, _, name = target.rpartition("/")
    if not kind:
        return [name]
    read = [program, "-n", namespace, "get", "-o", "json"]
    labels_of = _json([*read, target])["spec"]["selector"]["matchLabels"]
    labels = ",".join(f"{key}={value}" for key, value in labels_of.items())
    pods = _json([*read, "pods", "-l", labels, "--field-selector", "status.phase=Running"])
    return [pod["metadata"]["name"] for pod in pods["items"]]


def _json(command: list[str]) -> Any:
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


if __name__ == "__main__":
    which, place, real, *words = sys.argv[1:]
    if which == "docker":
        docker(Path(place), words)
    else:
        kubectl(Path(place), real, words)
