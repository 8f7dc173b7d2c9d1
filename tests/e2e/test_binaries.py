"""The messages of `make e2e` on a machine that cannot get a real Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from e2e.binaries import (
    DEFAULT,
    RELEASES,
    REQUIRED,
    ProgramsMissingError,
    Release,
    chosen_release,
    find_programs,
)


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


def test_a_folder_with_another_release_than_the_chosen_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = fill(tmp_path / "assets", *REQUIRED)
    (folder / "kube-apiserver").write_text("#!/bin/sh\necho Kubernetes v1.34.1\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    monkeypatch.setenv("FLEETBUS_KUBE", "1.34")
    assert find_programs() == folder
    monkeypatch.setenv("FLEETBUS_KUBE", "1.37")
    with pytest.raises(ProgramsMissingError, match=r"has Kubernetes v1\.34\.1, and FLEETBUS_KUBE"):
        find_programs()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", DEFAULT),
        ("1.34", DEFAULT),
        ("1.29", RELEASES[0]),
        ("v1.37.2", RELEASES[-1]),
        ("1.37", RELEASES[-1]),
        ("v1.36.4", replace(DEFAULT, version="v1.36.4")),
        ("1.29.0", replace(RELEASES[0], version="v1.29.0")),
        ("1.38.0", replace(RELEASES[-1], version="v1.38.0")),
    ],
)
def test_a_release_is_chosen_by_its_minor_version_or_in_full(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: Release
):
    monkeypatch.setenv("FLEETBUS_KUBE", text)
    assert chosen_release() == expected


@pytest.mark.parametrize("text", ["1.36", "newest", "1", "v1.37.2-rc.1"])
def test_what_is_no_release_is_refused(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("FLEETBUS_KUBE", text)
    with pytest.raises(ProgramsMissingError, match=f"FLEETBUS_KUBE={text}"):
        chosen_release()


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
