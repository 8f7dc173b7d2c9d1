"""The programs of a real control plane: those of KUBEBUILDER_ASSETS, or built once with Go.

They are built from the public Go modules of Kubernetes and etcd into a cache folder of the user
(`~/.cache/fleetbus`, or below XDG_CACHE_HOME), never into the project.

    python tests/run.py e2e.binaries        build what is missing and print the folder

FLEETBUS_KUBE chooses the release of Kubernetes, like `1.37` or `v1.37.2`; `make e2e KUBE=` sets it.

`find_helm` builds helm in the same way, for the tests of the chart.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

HELM = "v3.19.5"
CHOSEN = "FLEETBUS_KUBE"
REQUIRED = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
GIVEN = "KUBEBUILDER_ASSETS"


@dataclass(frozen=True)
class Release:
    """A release of Kubernetes, and what it is built with.

    Attributes:
        version: like `v1.34.1`.
        etcd: the version of etcd that it is released with.
        go: the Go version that its go.mod requires.
    """

    version: str
    etcd: str
    go: str

    @property
    def minor(self) -> tuple[int, int]:
        """Like (1, 34)."""
        major, minor, _ = self.version.removeprefix("v").split(".")
        return int(major), int(minor)


RELEASES = (
    Release("v1.29.15", "v3.5.16", "1.22"),
    Release("v1.34.1", "v3.6.4", "1.24.0"),
    Release("v1.37.2", "v3.7.0", "1.26.0"),
)
"""From the oldest that is supported on; a minor version names the last one here."""
DEFAULT = RELEASES[1]
"""Also the one that helm assumes where no server is asked."""

_COMMANDS = {name: f"k8s.io/kubernetes/cmd/{name}" for name in REQUIRED[1:]}
_ETCD = "go.etcd.io/etcd/server/v3"
_HELM_GO = "1.24.0"
"""The Go version that go.mod of helm requires."""


class ProgramsMissingError(Exception):
    """There is no real Kubernetes to be had; the message says what to do."""


def chosen_release() -> Release:
    """The release that FLEETBUS_KUBE names, by its minor version or in full.

    One in full that is not in `RELEASES` is built like the newest of them that is not newer.

    Raises:
        ProgramsMissingError: it is no version, or a minor version that is not in `RELEASES`.
    """
    text = os.environ.get(CHOSEN) or DEFAULT.version
    match = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)?", text)
    if not match:
        raise ProgramsMissingError(f"{CHOSEN}={text} is no version like 1.37 or v1.37.2")
    minor = int(match[1]), int(match[2])
    releases = [release for release in RELEASES if release.minor == minor]
    if not match[3]:
        if not releases:
            listed = ", ".join(release.version for release in RELEASES)
            raise ProgramsMissingError(f"{CHOSEN}={text}: name a whole version; known: {listed}")
        return releases[-1]
    older = [release for release in RELEASES if release.minor <= minor]
    return replace((older or RELEASES)[-1 if older else 0], version=f"v{text.removeprefix('v')}")


def find_programs() -> Path:
    """The folder that holds all programs; builds them if it has to (10 to 40 minutes, once).

    Raises:
        ProgramsMissingError: there are none, and they cannot be built.
    """
    release = chosen_release()
    if chosen_folder := os.environ.get(GIVEN):
        folder = Path(chosen_folder)
        if missing := _missing(folder):
            raise ProgramsMissingError(
                f"{GIVEN}={chosen_folder} lacks {', '.join(missing)}: name a folder with"
                f" {', '.join(REQUIRED)} of Kubernetes {release.version}, or unset it to build them"
            )
        _check_version(folder, release)
        return folder
    folder = _cache(f"kubernetes-{release.version}-etcd-{release.etcd}")
    if missing := _missing(folder):
        _build(folder, release, missing)
    return folder


def _check_version(folder: Path, release: Release) -> None:
    """Refuse a folder with another release than the one that was asked for."""
    if not os.environ.get(CHOSEN):
        return
    printed = _run([str(folder / "kube-apiserver"), "--version"], folder).stdout.split()
    if not printed or printed[-1] != release.version:
        raise ProgramsMissingError(
            f"{GIVEN}={folder} has {' '.join(printed) or 'an unknown Kubernetes'}, and {CHOSEN}"
            f" asks for {release.version}: unset one of them"
        )


def find_helm(*, may_build: bool) -> Path:
    """The helm program; built if it has to be and may be (5 minutes, once).

    Raises:
        ProgramsMissingError: there is none.
    """
    program = _cache(f"helm-{HELM}") / "helm"
    if os.access(program, os.X_OK):
        return program
    if not may_build:
        raise ProgramsMissingError(
            f"no helm {HELM} in {program.parent}: `make scenarios` builds it"
        )
    if shutil.which("go") is None:
        raise ProgramsMissingError(
            f"install Go {_HELM_GO} or newer, and helm {HELM} is built once into {program}"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    print(f"building helm into {program.parent}: 5 minutes, once", file=sys.stderr)
    with TemporaryDirectory(prefix="helm-build-") as scratch:
        module = Path(scratch, "helm")
        _write_module(module, _HELM_GO, {"helm.sh/helm/v3": HELM}, {})
        commands = {"helm": "helm.sh/helm/v3/cmd/helm"}
        _go_build(module, program.parent, commands, flags=_helm_flags())
    return program


def _cache(name: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "fleetbus", name)


def _missing(folder: Path) -> list[str]:
    return [name for name in REQUIRED if not os.access(folder / name, os.X_OK)]


def _build(folder: Path, release: Release, missing: list[str]) -> None:
    if shutil.which("go") is None:
        raise ProgramsMissingError(
            f"real control planes need {', '.join(REQUIRED)} of Kubernetes {release.version}:"
            f" install Go {release.go} or newer and they are built once into {folder}, or"
            f" set {GIVEN} to a folder that holds them"
        )
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building {', '.join(missing)} into {folder}: 10 to 40 minutes, once", file=sys.stderr)
    with TemporaryDirectory(prefix="kubernetes-build-") as scratch:
        module = Path(scratch)
        if "etcd" in missing:
            _write_module(module / "etcd", release.go, {_ETCD: release.etcd}, {})
            _go_build(module / "etcd", folder, {"etcd": _ETCD}, flags="")
        if packages := {name: package for name, package in _COMMANDS.items() if name in missing}:
            requires = {"k8s.io/kubernetes": release.version}
            _write_module(module / "kubernetes", release.go, requires, _staging(module, release))
            _go_build(module / "kubernetes", folder, packages, flags=_version_flags(release))


def _write_module(
    folder: Path, go: str, requires: dict[str, str], replaces: dict[str, str]
) -> None:
    folder.mkdir()
    lines = ["module scratch", f"go {go}"]
    lines += [f"require {name} {version}" for name, version in requires.items()]
    lines += [f"replace {name} => {name} {version}" for name, version in replaces.items()]
    (folder / "go.mod").write_text("\n".join(lines) + "\n")


def _staging(folder: Path, release: Release) -> dict[str, str]:
    """The versions of the modules that Kubernetes keeps in its own repository.

    Its go.mod names them by folders, which a module that requires it does not have.
    """
    command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{release.version}"]
    module = json.loads(_run(command, folder).stdout)
    names = re.findall(r"(k8s\.io/[a-z0-9-]+) => \./staging", Path(module["GoMod"]).read_text())
    return dict.fromkeys(sorted(set(names)), release.version.replace("v1", "v0", 1))


def _version_flags(release: Release) -> str:
    major, minor = map(str, release.minor)
    values = {"gitVersion": release.version, "gitMajor": major, "gitMinor": minor}
    places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        f"-X {place}.{name}={value}" for place in places for name, value in values.items()
    )


def _helm_flags() -> str:
    """The version, and the one of Kubernetes that `helm template` and `helm lint` assume."""
    major, minor = DEFAULT.minor
    values = {"internal/version.version": HELM}
    for place in ("pkg/chartutil", "pkg/lint/rules"):
        values |= {f"{place}.k8sVersionMajor": major, f"{place}.k8sVersionMinor": minor}
    return " ".join(f"-X helm.sh/helm/v3/{name}={value}" for name, value in values.items())


def _go_build(module: Path, folder: Path, packages: dict[str, str], *, flags: str) -> None:
    """Build into a folder beside and move: a build that is interrupted leaves no half a program."""
    for name, package in packages.items():
        binary = module / name
        # `-mod=mod` writes the requirements that are needed; `go mod tidy` would fetch tests, too.
        command = ["go", "build", "-mod=mod", "-trimpath", "-ldflags", f"-s -w {flags}"]
        # Before 1.31: without the cloud providers of its own tree, whose modules are large.
        _run([*command, "-tags", "providerless", "-o", str(binary), package], module)
        shutil.move(binary, folder / name)
        print(f"built {name}", file=sys.stderr)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GOWORK": "off", "CGO_ENABLED": "0"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-15:])
        raise ProgramsMissingError(f"{' '.join(command[:3])} failed in {folder}:\n{last}")
    return done


if __name__ == "__main__":
    try:
        print(find_programs())
    except ProgramsMissingError as e:
        sys.exit(str(e))
