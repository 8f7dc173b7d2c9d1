"""Runs the code blocks of a page as a reader would: files, changes, commands and what they say.

Of a page count: blocks ```` ```python ```` and ```` ```yaml ```` below a line that says
``Write `name`:``, blocks
```` ```diff ```` below one that says ``Change this line of `name`:``, and ```` ```console ````,
where lines with `$ ` are commands and the others are what they say; `…` stands for anything.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"(?:Write|Change this line of) `([\w.]+)`:\s*\Z")
_BASH: Final = "/bin/bash"
_PATIENCE: Final = 60.0
_OWN: Final = ("PYTEST_", "UV_", "COV_")
"""Variables that a reader does not have."""


@dataclass(frozen=True)
class Step:
    """One block: a file, a change of a file, or commands."""

    language: str
    text: str
    file: str = ""

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command with the lines that it says."""
        parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)
        assert not parts[0], f"a block begins with what nobody said: {parts[0]}"
        for section in parts[1:]:
            command, *output = section.splitlines()
            yield command, output


def read_steps(page: Path) -> list[Step]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    steps: list[Step] = []
    for block in _BLOCK.finditer(text):
        named = _FILE.search(text[: block.start()])
        steps.append(Step(block[1], block[2], named[1] if named else ""))
    return steps


def says(actual: str, lines: list[str]) -> bool:
    """Whether a command said these lines."""
    patterns = [re.escape(line).replace("…", ".*") if line != "…" else None for line in lines]
    pattern = "".join(r"(?:.*\n)*?" if line is None else f"{line} *\n" for line in patterns)
    return (
        re.fullmatch(pattern, actual if not actual or actual.endswith("\n") else f"{actual}\n")
        is not None
    )


@dataclass
class Terminal:
    """A shell that remembers where it is and what was exported.

    Attributes:
        folder: where it is.
        replaced: commands that are run in place of others.
        stays: the commands that stay in the foreground of a terminal of their own.
        is_repeated: the commands that a reader may have to repeat until they say what they should.
    """

    folder: Path
    replaced: Mapping[str, str] = field(default_factory=dict[str, str])
    stays: Callable[[str], bool] = lambda _: False
    is_repeated: Callable[[str], bool] = lambda _: False
    log: Path = field(init=False)
    _environment: dict[str, str] = field(init=False)
    _staying: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def __post_init__(self) -> None:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        self._environment = variables | {"HOME": str(self.folder)}
        self.log = self.folder / "staying.log"
        self._state = self.folder / "shell-state"

    def follow(self, step: Step) -> None:
        """Do what a block asks for.

        Raises:
            AssertionError: a command said something else.
        """
        if step.language in ("python", "yaml"):
            assert step.file, f"a file without a name:\n{step.text}"
            (self.folder / step.file).write_text(step.text, encoding="utf-8")
        elif step.language == "diff":
            self._change(self.folder / step.file, step.text)
        else:
            assert step.language == "console", step
            for command, output in step.commands():
                self._follow(command, output)

    def _change(self, file: Path, diff: str) -> None:
        sides = {"-": "", "+": ""}
        for line in diff.splitlines(keepends=True):
            sides[line[0]] += line[1:]
        text = file.read_text(encoding="utf-8")
        assert text.count(sides["-"]) == 1, f"{file.name} has not these lines once:\n{sides['-']}"
        file.write_text(text.replace(sides["-"], sides["+"]), encoding="utf-8")

    def _follow(self, command: str, expected: list[str]) -> None:
        patience = _PATIENCE if self.is_repeated(command) or self.stays(command) else 0
        give_up = time.monotonic() + patience
        if self.stays(command):
            self._stay(command)
        while True:
            actual = self._received() if self.stays(command) else self.run(command)
            if says(actual, expected):
                return
            assert time.monotonic() < give_up, f"$ {command}\n{actual}\ninstead of\n" + "\n".join(
                expected
            )
            time.sleep(0.05)  # between two looks

    def run(self, command: str) -> str:
        """Run a command to its end; what it said, errors too.

        Raises:
            AssertionError: it is one of ours, and failed.
        """
        script = (
            f"{self.replaced.get(command, command)}\nstatus=$?\n"
            f"export -p >{self._state}; pwd >>{self._state}; exit $status"
        )
        done = subprocess.run(
            [_BASH, "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        *exports, folder = self._state.read_text(encoding="utf-8").splitlines()
        self.folder = Path(folder)
        changed = re.findall(r'^declare -x (\w+)="(.*)"$', "\n".join(exports), re.MULTILINE)
        variables = {name: value for name, value in changed if "\\" not in value}
        self._environment |= variables
        # What a page leaves out with `…` must not be a failure of ours.
        is_ours = command.startswith("fleetbus ")
        assert not is_ours or not done.returncode, f"$ {command}\n{done.stdout}"
        return done.stdout

    def _stay(self, command: str) -> None:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [_BASH, "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._staying.append(process)

    def _received(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def interrupt(self) -> list[int]:
        """Press Ctrl-C in the terminals where something stays; the exit statuses."""
        for process in self._staying:
            process.send_signal(signal.SIGINT)
        return [process.wait(_PATIENCE) for process in self._staying]

    def aclose(self) -> None:
        """Leave no process behind, whatever has happened."""
        for process in self._staying:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def clone_of(root: Path, folder: Path) -> Generator[Path]:
    """A folder that looks like this clone, without what is started in the real one."""
    clone = folder / "clone"
    clone.mkdir()
    for entry in root.iterdir():
        if entry.name not in {".fleetbus", ".git", ".hypothesis", ".pytest_cache", "mine"}:
            (clone / entry.name).symlink_to(entry)
    try:
        yield clone
    finally:
        shutil.rmtree(clone)
