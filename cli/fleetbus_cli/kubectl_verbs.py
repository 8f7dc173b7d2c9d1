"""Runs the verbs of the plugin that are kubectl's own, against the hub.

Manifests of multi_resource_operator are read under the group that its types have here.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final, cast

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus.process.file_errors import file_problem
from fleetbus_cli.config.origins import print_home_file
from fleetbus_cli.mro_config import mro_config_file
from fleetbus_cli.target import read_mro_config, resolve_target

_FORMER: Final = "mulitcluster.practice.com/v1alpha1"
"""It is spelt like this."""
_CURRENT: Final = "fleetbus.dev/v1alpha1"
_API_VERSION: Final = re.compile(rf"""^(apiVersion:\s*["']?){re.escape(_FORMER)}\b""", re.MULTILINE)
"""In the first column of YAML: further right it may be data of a ConfigMap."""
_SUFFIXES: Final = (".json", ".yaml", ".yml")
_FILES: Final = ("-f", "--filename")
_HUB: Final = ("--kubeconfig", "--context", "--server", "-s")


def run_kubectl(verb: str, words: Sequence[str]) -> int:
    """Run `kubectl VERB …` against the hub; return its exit status.

    Raises:
        ConfigError: kubectl is not installed, or a file cannot be read.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise ConfigError(f"kubectl is not installed; {verb} is kubectl's own")
    arguments, manifests = _translate(words)
    hub = [] if any(_option(word) in _HUB for word in words) else _hub_arguments()
    printer.flush()
    done = subprocess.run(
        [program, verb, *hub, *arguments], input=manifests, text=manifests is not None, check=False
    )
    return done.returncode


def _option(argument: str) -> str:
    """The name of an option; of `-fFILE`, too."""
    if argument.startswith("--"):
        return argument.partition("=")[0]
    return argument[:2] if argument.startswith("-") else ""


def _hub_arguments() -> list[str]:
    """Lead kubectl to the hub, as the other commands find it; else it has its own ways."""
    path = os.environ.get("FLEETBUS_HUB_KUBECONFIG")
    context = os.environ.get("FLEETBUS_HUB_CONTEXT", "")
    if not path:
        target = resolve_target()
        if not target.hub:
            return _former_hub()
        path, context = str(target.kubeconfig), context or target.hub
    return ["--kubeconfig", path, *(["--context", context] if context else [])]


def _former_hub() -> list[str]:
    """The hub that the file of multi_resource_operator names, where KUBECONFIG names none."""
    path = "" if os.environ.get("KUBECONFIG") else read_mro_config().kubeconfig
    if not path:
        return []
    print_home_file(str(mro_config_file()), "the hub")
    return ["--kubeconfig", str(pathlib.Path(path).expanduser())]


def _translate(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Replace files that have the former group by standard input.

    Returns:
        The arguments for kubectl, and its standard input if it is not ours.
    """
    arguments: list[str] = []
    texts: list[str] = []
    remaining_words = iter(words)
    for word in remaining_words:
        if _option(word) not in _FILES:
            arguments.append(word)
            continue
        name = (
            next(remaining_words, "")
            if word in _FILES
            else word.removeprefix(_option(word)).lstrip("=")
        )
        if not name:
            arguments.append(word)  # kubectl says what is missing
            continue
        manifests = _read(name)
        changed = [_rewritten(text) for text in manifests]
        if changed != manifests:
            printer.note(
                f"kubectl-multicluster: {name}: apiVersion {_FORMER} is read as {_CURRENT}"
            )
        if changed != manifests or name == "-":
            texts += changed
        else:
            arguments += ["-f", name]
    if not texts:
        return arguments, None
    # As YAML from its first line, of which JSON is a part.
    return [*arguments, "-f", "-"], "\n".join(f"---\n{text}" for text in texts)


def _read(name: str) -> list[str]:
    """The manifests of a file or folder; none of an address, which is left to kubectl."""
    if name == "-":
        return [sys.stdin.read()]
    path = pathlib.Path(name)
    try:
        files = [path]
        if path.is_dir():
            files = sorted(entry for entry in path.iterdir() if entry.suffix in _SUFFIXES)
        return [entry.read_text(encoding="utf-8") for entry in files if entry.is_file()]
    except (OSError, UnicodeDecodeError) as e:
        file = (isinstance(e, OSError) and e.filename) or name
        raise ConfigError(f"{file}: cannot be read: {file_problem(e)}") from e


def _rewritten(text: str) -> str:
    if not text.lstrip().startswith("{"):
        return _API_VERSION.sub(rf"\g<1>{_CURRENT}", text)
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        return text  # kubectl says what is wrong with it
    former = [entry for entry in (document, *(document.get("items") or ())) if _is_former(entry)]
    for entry in former:
        entry["apiVersion"] = _CURRENT
    return json.dumps(document) if former else text


def _is_former(document: Any) -> bool:
    return (
        isinstance(document, dict) and cast("dict[str, Any]", document).get("apiVersion") == _FORMER
    )
