"""Loads the controllers of a Python file or module."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import pathlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from types import ModuleType
from typing import Final

from fleetbus.controller.controller import Controller
from fleetbus.errors import ConfigError
from fleetbus.process.error_text import describe

_PACKAGE: Final = pathlib.Path(__file__).parents[1]
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")
_LETTERS: Final = 1000
"""The most that is shown of an error that an import raised."""


def load_controllers(names: list[str]) -> list[Controller]:
    """Load all controllers of these modules, in their order; each module once.

    Raises:
        ConfigError: a module cannot be imported, defines no controller, or an incomplete one. The
            message names the module and the line of user code.
    """
    loaded: list[Controller] = []
    for name in distinct(names):
        module = load_module(name)
        controllers = {k: v for k, v in vars(module).items() if isinstance(v, Controller)}
        if not controllers:
            raise ConfigError(f"{name}: defines no fleetbus.Controller")
        for variable, controller in controllers.items():
            if controller not in loaded:
                _check_whole(name, module, variable, controller)
                loaded.append(controller)
    return loaded


def _check_whole(name: str, module: ModuleType, variable: str, controller: Controller) -> None:
    try:
        controller.function()
    except ConfigError as e:
        line = _line_of(module, variable)
        place = f" ({module.__file__}:{line})" if line else ""
        raise ConfigError(f"{name}: {e}{place}") from e


def _line_of(module: ModuleType, variable: str) -> int:
    """The line that first assigns a variable of a module; 0 if the source does not show it."""
    try:
        tree = ast.parse(pathlib.Path(str(module.__file__)).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return 0
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == variable for t in targets):
            return node.lineno
    return 0


def local_files(error: BaseException | None = None) -> list[str]:
    """The files of user code among the imported modules, to be watched for changes.

    Args:
        error: why an import failed: the files in its traceback are added, and all folders,
            because a missing file may appear.
    """
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = {str(file) for file in loaded if file and str(file).endswith(".py")}
    folders: set[str] = set()
    while error is not None:
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        named = [error.filename] if isinstance(error, SyntaxError) and error.filename else []
        files |= {file for file in [*frames, *named] if pathlib.Path(file).is_file()}
        error = error.__cause__
        folders = {str(pathlib.Path(file).parent) for file in files if not _is_ours(file)}
    return sorted({file for file in files if not _is_ours(file)} | folders)


def distinct(names: Iterable[str]) -> list[str]:
    """Each module once, even if its path is written in several ways."""
    return list({_identity(name): name for name in names}.values())


def _identity(name: str) -> str:
    return str(pathlib.Path(name).resolve()) if name.endswith(".py") else name


def load_module(name: str) -> ModuleType:
    """Import a Python file, or a module by its name.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        if name.endswith(".py"):
            return _load_file(pathlib.Path(name))
        if pathlib.Path(name).exists() and not name.isidentifier():
            raise ConfigError("neither a Python file, like controller.py, nor a module")  # noqa: TRY301 -- gets the name below
        _add_to_path(pathlib.Path.cwd())
        return importlib.import_module(name)
    except ConfigError as e:
        raise ConfigError(f"{name}: {e}{_place(e)}") from e
    except SystemExit as e:  # user code that would end the process without a word
        raise ConfigError(f"{name}: exits when it is imported{_place(e)}") from e
    except Exception as e:
        reason = describe(e, letters=_LETTERS)
        raise ConfigError(f"{name}: cannot be imported: {reason}{_place(e)}") from e


def _load_file(path: pathlib.Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError("no such file")
    # The folder's hash keeps two files of one name apart.
    digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise ConfigError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # The file may import its neighbours, as it could if it were run as a script.
    _add_to_path(path.resolve().parent)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]  # a module that was executed in part is worse than none
        raise
    return module


def _add_to_path(folder: pathlib.Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _place(error: BaseException) -> str:
    """The last line of user code; the lines of the code that it called do not help the user."""
    if isinstance(error, SyntaxError):
        return ""  # the message has file and line
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not _is_ours(frame.filename)]
    return f" ({user_frames[-1].filename}:{user_frames[-1].lineno})" if user_frames else ""


def _is_ours(filename: str) -> bool:
    return (
        filename.startswith(("<frozen", str(_PACKAGE), _STANDARD_LIBRARY))
        or "site-packages" in filename
    )
