"""The messages of `make e2e` on a machine that cannot get a real Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.binaries import REQUIRED, ProgramsMissingError, find_programs


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).touch(mode=0o755)
    return folder


def test_a_folder_that_has_all_programs_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = fill(tmp_path / "assets", *REQUIRED)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    assert find_programs() == folder


def test_a_folder_that_lacks_a_program_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = fill(tmp_path / "assets", *REQUIRED[:-1])
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    with pytest.raises(ProgramsMissingError, match=rf"lacks {REQUIRED[-1]}:"):
        find_programs()


def test_without_go_and_without_a_folder_one_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramsMissingError, match=r"install Go .* or set KUBEBUILDER_ASSETS"):
        find_programs()
    assert not list(tmp_path.iterdir())


_GO = """#!/bin/sh
case "$*" in
"mod download"*) echo '{"GoMod": "'"$(dirname "$0")"'/go.mod"}' ;;
build*) for one; do before=$last; last=$one; done
    echo "$last" >> "$(dirname "$0")/packages"; : > "$before"; chmod +x "$before" ;;
esac
"""


def test_what_is_missing_is_built_from_the_packages_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "go.mod").write_text("replace k8s.io/api => ./staging/src/k8s.io/api\n")
    (tmp_path / "go").write_text(_GO)
    (tmp_path / "go").chmod(0o755)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert {path.name for path in find_programs().iterdir()} == set(REQUIRED)
    assert (tmp_path / "packages").read_text().split() == [
        "go.etcd.io/etcd/server/v3",
        *(f"k8s.io/kubernetes/cmd/{name}" for name in REQUIRED[1:]),
    ]
