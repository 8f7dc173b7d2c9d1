"""The programs of a real control plane: those of KUBEBUILDER_ASSETS, or built once with Go.

They are built from the public Go modules of Kubernetes and etcd into a cache folder of the user
(`~/.cache/fleetbus`, or below XDG_CACHE_HOME), never into the project.

    python tests/run.py e2e.binaries        build what is missing and print the folder

`find_helm` builds helm in the same way, for the tests of the chart.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

KUBERNETES = "v1.34.1"
ETCD = "v3.6.4"
HELM = "v3.19.5"
REQUIRED = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
GIVEN = "KUBEBUILDER_ASSETS"

_COMMANDS = {name: f"k8s.io/kubernetes/cmd/{name}" for name in REQUIRED[1:]}
_ETCD = "go.etcd.io/etcd/server/v3"
_GO_VERSION = "1.24.0"
"""The Go version that go.mod of this Kubernetes requires."""


class ProgramsMissingError(Exception):
    """There is no real Kubernetes to be had; the message says what to do."""


def find_programs() -> Path:
    """The folder that holds all programs; builds them if it has to (10 to 20 minutes, once).

    Raises:
        ProgramsMissingError: there are none, and they cannot be built.
    """
    if given := os.environ.get(GIVEN):
        folder = Path(given)
        if missing := _missing(folder):
            raise ProgramsMissingError(
                f"{GIVEN}={given} lacks {', '.join(missing)}: name a folder with"
                f" {', '.join(REQUIRED)} of Kubernetes {KUBERNETES}, or unset it to build them"
            )
        return folder
    folder = _cache()
    if missing := _missing(folder):
        _build(folder, missing)
    return folder


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
            f"install Go {_GO_VERSION} or newer, and helm {HELM} is built once into {program}"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    print(f"building helm into {program.parent}: 5 minutes, once", file=sys.stderr)
    with TemporaryDirectory(prefix="helm-build-") as scratch:
        module = Path(scratch, "helm")
        _write_module(module, {"helm.sh/helm/v3": HELM}, {})
        commands = {"helm": "helm.sh/helm/v3/cmd/helm"}
        _go_build(module, program.parent, commands, flags=_helm_flags())
    return program


def _cache(name: str = f"kubernetes-{KUBERNETES}-etcd-{ETCD}") -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "fleetbus", name)


def _missing(folder: Path) -> list[str]:
    return [name for name in REQUIRED if not os.access(folder / name, os.X_OK)]


def _build(folder: Path, missing: list[str]) -> None:
    if shutil.which("go") is None:
        raise ProgramsMissingError(
            f"real control planes need {', '.join(REQUIRED)} of Kubernetes {KUBERNETES}: install"
            f" Go {_GO_VERSION} or newer and they are built once into {folder}, or set {GIVEN} to"
            " a folder that holds them"
        )
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building {', '.join(missing)} into {folder}: 10 to 20 minutes, once", file=sys.stderr)
    with TemporaryDirectory(prefix="kubernetes-build-") as scratch:
        module = Path(scratch)
        if "etcd" in missing:
            _write_module(module / "etcd", {_ETCD: ETCD}, {})
            _go_build(module / "etcd", folder, {"etcd": _ETCD}, flags="")
        if wanted := {name: package for name, package in _COMMANDS.items() if name in missing}:
            _write_module(
                module / "kubernetes", {"k8s.io/kubernetes": KUBERNETES}, _staging(module)
            )
            _go_build(module / "kubernetes", folder, wanted, flags=_version_flags())


def _write_module(folder: Path, requires: dict[str, str], replaces: dict[str, str]) -> None:
    folder.mkdir()
    lines = ["module scratch", f"go {_GO_VERSION}"]
    lines += [f"require {name} {version}" for name, version in requires.items()]
    lines += [f"replace {name} => {name} {version}" for name, version in replaces.items()]
    (folder / "go.mod").write_text("\n".join(lines) + "\n")


def _staging(folder: Path) -> dict[str, str]:
    """The versions of the modules that Kubernetes keeps in its own repository.

    Its go.mod names them by folders, which a module that requires it does not have.
    """
    asked = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{KUBERNETES}"]
    module = json.loads(_run(asked, folder).stdout)
    names = re.findall(r"(k8s\.io/[a-z0-9-]+) => \./staging", Path(module["GoMod"]).read_text())
    return dict.fromkeys(sorted(set(names)), KUBERNETES.replace("v1", "v0", 1))


def _version_flags() -> str:
    _, minor, _ = KUBERNETES.split(".")
    said = {"gitVersion": KUBERNETES, "gitMajor": "1", "gitMinor": minor}
    places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        f"-X {place}.{name}={value}" for place in places for name, value in said.items()
    )


def _helm_flags() -> str:
    """The version, and the one of Kubernetes that `helm template` and `helm lint` assume."""
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    said = {"internal/version.version": HELM}
    for place in ("pkg/chartutil", "pkg/lint/rules"):
        said |= {f"{place}.k8sVersionMajor": major, f"{place}.k8sVersionMinor": minor}
    return " ".join(f"-X helm.sh/helm/v3/{name}={value}" for name, value in said.items())


def _go_build(module: Path, folder: Path, wanted: dict[str, str], *, flags: str) -> None:
    """Build into a folder beside and move: a build that is interrupted leaves no half a program."""
    for name, package in wanted.items():
        made = module / name
        # `-mod=mod` writes the requirements that are needed; `go mod tidy` would fetch tests, too.
        command = ["go", "build", "-mod=mod", "-trimpath", "-ldflags", f"-s -w {flags}"]
        _run([*command, "-o", str(made), package], module)
        shutil.move(made, folder / name)
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
