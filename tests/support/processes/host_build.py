"""Executes the steps of a Dockerfile on this host, in a folder that stands for the file system."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

ROOT: Final = Path(__file__).parents[3]
_FLAG: Final = re.compile(r"^--([a-z]+)=(\S+)\s+")
# An absolute path within a step; `docker.io/library` and `a/b` are none.
_ABSOLUTE: Final = re.compile(r"(?<![^\s=:])/(?=[a-z])")
_NOT_GIVEN: Final = ("__pycache__", "*.egg-info")  # the last lines of .dockerignore
# How this host reaches the package index, behind a mirror say.
_INHERITED: Final = ("UV_SYSTEM_CERTS", "UV_INDEX", "UV_DEFAULT_INDEX", "PIP_", "SSL_", "HTTP")


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: `COPY --from=build /app /app`."""

    keyword: str
    flags: tuple[tuple[str, str], ...]
    rest: str

    def flag(self, name: str) -> list[str]:
        """The values of a flag, which may be given more than once."""
        return [value for flag, value in self.flags if flag == name]


def read_steps(dockerfile: Path) -> list[Step]:
    """Read the instructions of a Dockerfile, without comments, each in one line."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [_step(line.strip()) for line in joined.splitlines() if line.strip()]


def _step(line: str) -> Step:
    keyword, _, remainder = line.partition(" ")
    flags: list[tuple[str, str]] = []
    remainder = remainder.strip()
    while match := _FLAG.match(remainder):
        flags.append((match[1], match[2]))
        remainder = remainder[match.end() :]
    return Step(keyword, tuple(flags), remainder)


class HostBuild:
    """The build of an image: `root` is the file system of the stage that is being built.

    Every stage is built at the same path, as in an image, because console scripts contain it.
    """

    def __init__(
        self, folder: Path, *, context: Path = ROOT, overrides: Mapping[str, str] | None = None
    ) -> None:
        self.root: Final = folder / "root"
        self.environment: dict[str, str] = {}
        self.user = "0"
        self._folder: Final = folder
        self._context: Final = context
        self._overrides: Final = overrides or {}
        self._tools: Final = _tools(folder)
        self._stage = ""
        self._arguments: dict[str, str] = {}
        self._workdir = "/"

    def execute(self, steps: list[Step]) -> None:
        """Execute all steps.

        Raises:
            ValueError: a step that this does not know, or whose file is not in the context.
        """
        for step in steps:
            match step.keyword:
                case "ARG":
                    self._argument(step)
                case "FROM":
                    self._begin_stage(step)
                case "ENV":
                    self._set_environment(step)
                case "WORKDIR":
                    self._workdir = step.rest
                    self._path(".").mkdir(parents=True)
                case "COPY":
                    self._copy(step)
                case "RUN":
                    self._run(step)
                case "USER":
                    self.user = step.rest
                case _:
                    raise ValueError(f"{step.keyword}: not known how to do this on a host")

    def _argument(self, step: Step) -> None:
        """Before all stages a base image, in a stage an argument of its RUN steps."""
        if self._stage:
            name, _, value = step.rest.partition("=")
            self._arguments[name] = "".join(shlex.split(value))
        elif "@sha256:" not in step.rest:
            raise ValueError(f"{step.rest} is no image by digest")

    def _begin_stage(self, step: Step) -> None:
        """Begin a stage; this host takes the place of the base image."""
        if self._stage:
            self.root.rename(self._folder / self._stage)
        self.root.mkdir(parents=True)
        self._stage = step.rest.partition(" AS ")[2]
        self._workdir, self.user = "/", "0"
        self._arguments = {}
        python = Path(sys.executable).resolve().parent
        self.environment = {"PATH": f"{self._tools}:{python}:/usr/bin:/bin"}

    def _set_environment(self, step: Step) -> None:
        for pair in shlex.split(step.rest):
            name, _, value = pair.partition("=")
            self.environment[name] = Template(self._here(value)).substitute(self.environment)

    def _copy(self, step: Step) -> None:
        *sources, target = step.rest.split()
        stage = "".join(step.flag("from"))
        for source in sources:
            place = self._path(target)
            source_path = (
                self._folder / stage / source.lstrip("/") if stage else self._given(source)
            )
            into = place / source_path.name if target.endswith("/") else place
            _copy(source_path, into, ignored=() if stage else _NOT_GIVEN)

    def _run(self, step: Step) -> None:
        mounted = [self._mount(flag) for flag in step.flag("mount")]
        inherited = {k: v for k, v in os.environ.items() if k.startswith(_INHERITED)}
        done = subprocess.run(
            ["/bin/sh", "-c", self._here(step.rest)],
            check=False,
            cwd=self._path("."),
            env={**inherited, **self._arguments, **self.environment, **self._overrides},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ValueError(f"RUN {step.rest}: {done.stderr or done.stdout}")
        for place in mounted:
            place.unlink()

    def _mount(self, flag: str) -> Path:
        options = dict(pair.split("=", 1) for pair in flag.split(","))
        place = self._path(options["target"])
        if options["type"] == "cache":
            place.symlink_to(_cache(self._tools))
        else:
            _copy(self._given(options["source"]), place, ignored=_NOT_GIVEN)
        return place

    def _given(self, source: str) -> Path:
        """A path of the context, if `.dockerignore` leaves it in."""
        lines = (self._context / ".dockerignore").read_text().splitlines()
        if "*" not in lines or f"!{source}" not in lines:
            raise ValueError(f"{source} is not in the context: see .dockerignore")
        return self._context / source

    def _path(self, path: str) -> Path:
        return self.root / (path if path[0] == "/" else f"{self._workdir}/{path}").lstrip("/")

    def _here(self, text: str) -> str:
        return _ABSOLUTE.sub(f"{self.root}/", text)


def _copy(source: Path, target: Path, *, ignored: tuple[str, ...]) -> None:
    if source.is_dir():
        ignore = shutil.ignore_patterns(*ignored)
        shutil.copytree(source, target, symlinks=True, ignore=ignore)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _tools(folder: Path) -> Path:
    """Where pip and uv are: those of `make install`, or else an environment of our own."""
    tools = ROOT / ".tools" / "bin"
    if not (tools / "pip").exists():
        tools = folder / "tools" / "bin"
        venv.create(tools.parent, with_pip=True)
    return tools


def _cache(tools: Path) -> str:
    """The cache of uv, so that what `make install` has brought is not brought again."""
    uv = [str(tools / "uv"), "cache", "dir"]
    return subprocess.run(uv, check=True, capture_output=True, text=True).stdout.strip()
