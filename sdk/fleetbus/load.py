"""User code: from a file or module name to its controllers."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pathlib
import sys
import traceback
from types import ModuleType

from fleetbus.controller import Controller
from fleetbus.errors import ConfigError


def load_controllers(names: list[str]) -> list[Controller]:
    """All controllers of the modules, in their order; one imported twice counts once.

    Raises:
        ConfigError: a module cannot be imported, or defines no controller. The message names the
            module and the line of the user's code that failed.
    """
    found: list[Controller] = []
    for name in names:
        module = load_module(name)
        controllers = [v for v in vars(module).values() if isinstance(v, Controller)]
        if not controllers:
            raise ConfigError(f"{name}: defines no fleetbus.Controller")
        found += [c for c in controllers if c not in found]
    return found


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
        raise ConfigError(f"{name}: {e}") from e
    except Exception as e:
        raise ConfigError(f"{name}: cannot be imported: {_where(e)}") from e


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
    spec.loader.exec_module(module)
    return module


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
