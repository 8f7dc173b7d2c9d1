"""User code: from a file or module name to its controllers."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pathlib
import sys
import sysconfig
import traceback
from types import ModuleType
from typing import Final

from fleetbus.controller import Controller
from fleetbus.errors import ConfigError

_PACKAGE: Final = pathlib.Path(__file__).parent
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")


def load_controllers(names: list[str]) -> list[Controller]:
    """All controllers of the modules, in their order; one named twice counts once.

    Raises:
        ConfigError: a module cannot be imported, or defines no controller. The message names the
            module and the line of the user's code that failed.
    """
    found: list[Controller] = []
    for name in {_identity(name): name for name in names}.values():
        module = load_module(name)
        controllers = [v for v in vars(module).values() if isinstance(v, Controller)]
        if not controllers:
            raise ConfigError(f"{name}: defines no fleetbus.Controller")
        for controller in controllers:
            if controller not in found:
                found.append(controller)
    return found


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
        return importlib.import_module(name)
    except ConfigError as e:
        raise ConfigError(f"{name}: {e}{_place(e)}") from e
    except SystemExit as e:  # user code that would end the process, unseen
        raise ConfigError(f"{name}: exits when it is imported{_place(e)}") from e
    except Exception as e:
        what = f"{type(e).__name__}: {e}"
        raise ConfigError(f"{name}: cannot be imported: {what}{_place(e)}") from e


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
    # The file may import its neighbours, as it could if it were started itself.
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]  # half of a module is worse than none
        raise
    return module


def _place(error: BaseException) -> str:
    """The last line of the user's own code; what it called says little to the user."""
    if isinstance(error, SyntaxError):
        return ""  # its text names file and line
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_ours(frame.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _is_ours(filename: str) -> bool:
    return (
        filename.startswith(("<frozen", str(_PACKAGE), _STANDARD_LIBRARY))
        or "site-packages" in filename
    )
