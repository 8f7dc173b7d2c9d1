"""User code is found and imported; what is wrong in it is named by file and line."""

from __future__ import annotations

import pathlib
import re

import pytest

from fleetbus.controller.load import load_controllers
from fleetbus.errors import ConfigError
from fleetbus.worker.host import check_controllers
from fleetbus_reconciler.main import main
from support.processes.in_process_commands import one_line, status_of

WHOLE = """
import fleetbus

{name} = fleetbus.Controller("{name}")
{name}.watch("v1/pods")

@{name}.reconcile
async def reconcile(request, fleet): ...
"""


def write(folder: pathlib.Path, text: str, name: str = "controller.py") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def names(*modules: str) -> list[str]:
    return [controller.name for controller in load_controllers(list(modules))]


def test_controllers_of_several_files_are_found_in_their_order(tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    first = write(tmp_path, WHOLE.format(name="b") + WHOLE.format(name="c"))
    second = write(other, WHOLE.format(name="a"))
    assert names(first, second) == ["b", "c", "a"]


def test_a_file_named_twice_and_a_controller_bound_to_two_names_count_once(
    tmp_path: pathlib.Path,
) -> None:
    path = write(tmp_path, WHOLE.format(name="a") + "\nalias = a\n")
    again = str(tmp_path / "." / ".." / tmp_path.name / "controller.py")
    assert names(path, path, again) == ["a"]


def test_two_controllers_of_one_name_are_reported_with_both_places(tmp_path: pathlib.Path) -> None:
    files = [write(tmp_path, WHOLE.format(name="c"), name) for name in ("one.py", "two.py")]
    with pytest.raises(ConfigError) as caught:
        check_controllers(load_controllers(files))
    places = " and ".join(f"{file}:4" for file in files)
    assert str(caught.value) == f"two controllers are named c: {places}"


def test_a_file_may_import_its_neighbours(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "NAME = 'from-the-neighbour'", "a_neighbour_of_the_test.py")
    text = WHOLE.format(name="own").replace('"own"', "n.NAME")
    text = f"import a_neighbour_of_the_test as n\n{text}"
    assert names(write(tmp_path, text)) == ["from-the-neighbour"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import fleetbus\n\n1 / 0\n", r"ZeroDivisionError: division by zero \(.*:3\)"),
        ("x = 1\nimport no_such_module_here\n", r"No module named .* \(.*controller\.py:2\)"),
        ("import json\n\njson.loads('{')\n", r"JSONDecodeError: .* \(.*controller\.py:3\)"),
        ("def f(:\n", r"SyntaxError: .*controller\.py, line 1\)"),
        ("import sys\nsys.exit(0)\n", r"exits when it is imported \(.*controller\.py:2\)"),
        (
            "import fleetbus\nfleetbus.Controller('Bad Name')\n",
            r"'Bad Name' is not a DNS-1123 label: .* \(.*controller\.py:2\)",
        ),
        (
            "import fleetbus\nc = fleetbus.Controller('a')\n\nc.watch('no resource')\n",
            r"controller 'a': .* \(.*controller\.py:4\)",
        ),
        ("x = 1\n", r"defines no fleetbus\.Controller"),
    ],
)
def test_what_is_wrong_is_reported_with_module_and_line(
    tmp_path: pathlib.Path, text: str, says: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=f"{says}$") as caught:
        load_controllers([path])
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [".", "a/folder", "notes.txt"])
def test_what_is_there_and_is_no_python_file_is_reported_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "a" / "folder").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"^{re.escape(name)}: neither a Python file"):
        load_controllers([name])


@pytest.mark.parametrize("name", ["/nowhere/controller.py", "no.such.module"])
def test_a_module_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        load_controllers([name])


def test_a_file_that_failed_may_be_mended_and_loaded_again(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "1 / 0\n")
    with pytest.raises(ConfigError):
        load_controllers([path])
    write(tmp_path, WHOLE.format(name="mended"))
    assert names(path) == ["mended"]


def test_the_service_ends_with_status_2_and_one_line_without_a_traceback(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "import fleetbus\n\n1 / 0\n")
    assert status_of(main, [path]) == 2
    assert f"{path}:3" in one_line(capsys)
