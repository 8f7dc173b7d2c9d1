"""Merges contexts into a kubeconfig, without losing what others have there."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import yaml

from fleetbus.errors import ConfigError
from fleetbus.process.file_errors import file_problem
from fleetbus_cli.whole_file import whole_file

SECTIONS: Final = ("clusters", "contexts", "users")


def default_path() -> pathlib.Path:
    """The kubeconfig that kubectl would write to."""
    paths = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return pathlib.Path(paths[0] if paths else "~/.kube/config").expanduser()


def merge_into(path: pathlib.Path, document: dict[str, Any], *, servers: str) -> None:
    """Write the entries of a kubeconfig into another one.

    Entries of the same names are replaced. Contexts of clusters that have left are removed: those
    whose server begins like `servers`. The current context stays, unless there is none.

    Raises:
        ConfigError: the file is not a kubeconfig, is locked, or cannot be written.
    """
    with _locked(path):
        kubeconfig = _read(path)
        _drop(kubeconfig, servers)
        for section in SECTIONS:
            names = {entry["name"] for entry in document[section]}
            other_entries = [
                entry for entry in kubeconfig[section] if entry.get("name") not in names
            ]
            kubeconfig[section] = [*other_entries, *document[section]]
        if not kubeconfig.get("current-context"):
            kubeconfig["current-context"] = document["current-context"]
        _write(path, yaml.safe_dump(kubeconfig, sort_keys=False))


def _drop(kubeconfig: dict[str, Any], servers: str) -> None:
    """Remove the clusters at these servers, and their contexts."""
    clusters: list[dict[str, Any]] = kubeconfig["clusters"]
    contexts: list[dict[str, Any]] = kubeconfig["contexts"]
    gone = {
        entry.get("name")
        for entry in clusters
        if str(_inside(entry, "cluster").get("server", "")).startswith(servers)
    }
    kubeconfig["clusters"] = [entry for entry in clusters if entry.get("name") not in gone]
    kubeconfig["contexts"] = [
        entry for entry in contexts if _inside(entry, "context").get("cluster") not in gone
    ]


def _inside(entry: dict[str, Any], kind: str) -> dict[str, Any]:
    fields = entry.get(kind)
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


def _read(path: pathlib.Path) -> dict[str, Any]:
    """The kubeconfig, with all its sections."""
    try:
        content: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        content = None
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read: {file_problem(e)}") from e
    except yaml.YAMLError as e:
        raise ConfigError(f"{path}: not valid YAML; the file was not changed") from e
    if content is None:
        content = {"apiVersion": "v1", "kind": "Config"}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not a kubeconfig; the file was not changed")
    kubeconfig = cast("dict[str, Any]", content)
    for section in SECTIONS:
        entries: Any = kubeconfig.get(section) or []
        if not isinstance(entries, list) or not all(
            isinstance(entry, dict) for entry in cast("list[object]", entries)
        ):
            raise ConfigError(
                f"{path}: `{section}` is not a list of entries; the file was not changed"
            )
        kubeconfig[section] = entries
    return kubeconfig


def _write(path: pathlib.Path, text: str) -> None:
    """Replace the file in one step, readable by its owner only; a link stays one."""
    try:
        with whole_file(path.resolve(), replaces=True) as file:
            file.write(text.encode())
    except OSError as e:
        raise ConfigError(f"{path}: cannot be written: {file_problem(e)}") from e


@contextmanager
def _locked(path: pathlib.Path) -> Generator[None]:
    """Lock the file as kubectl does, by another one beside it."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0))
    except FileExistsError:
        raise ConfigError(
            f"{path}: locked by another program; if none runs, remove {lock}"
        ) from None
    except OSError as e:
        raise ConfigError(f"{path}: cannot be written: {file_problem(e)}") from e
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
