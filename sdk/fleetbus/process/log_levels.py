"""Levels of logs that change while a process runs: a default, and those of single controllers.

They are in a file, which a ConfigMap is mounted as, so that neither a restart nor a right on a
running process is needed to look at one controller more closely.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Mapping
from typing import Final, Literal, cast

import structlog

from fleetbus.errors import ConfigError
from fleetbus.process.file_errors import file_problem

log = structlog.get_logger()

LogLevel = Literal["debug", "info", "warning", "error"]
_RANKS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_NAMES: Final = {"exception": "error", "critical": "error", "warn": "warning", "err": "error"}
"""Methods of a logger that are not named after a level of ours."""
READ_EVERY: Final = 5.0


def check_level(level: object, where: str = "log level") -> LogLevel:
    """Return a level.

    Raises:
        ConfigError: it is none.
    """
    if level not in _RANKS:
        raise ConfigError(f"{where} {level!r} is not one of {', '.join(_RANKS)}")
    return cast("LogLevel", level)


class LogLevels:
    """The levels of this process."""

    def __init__(self) -> None:
        self.least = _RANKS["info"]
        """The level below which nothing is logged by anybody, as in `logging`."""
        self._default = self.least
        self._controllers: Mapping[str, int] = {}

    def set(self, default: LogLevel, controllers: Mapping[str, LogLevel] | None = None) -> None:
        """Set all levels.

        Args:
            default: of every line.
            controllers: of lines of single controllers, by name.
        """
        self._default = _RANKS[default]
        self._controllers = {name: _RANKS[level] for name, level in (controllers or {}).items()}
        self.least = min(self._default, *self._controllers.values(), _RANKS["error"])
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(self.least))

    def shows_debug(self, controller: str) -> bool:
        """Whether lines of the level `debug` of a controller are logged."""
        return self._controllers.get(controller, self._default) <= _RANKS["debug"]

    def drop_quiet(
        self,
        _logger: structlog.typing.WrappedLogger,
        method: str,
        event: structlog.typing.EventDict,
    ) -> structlog.typing.EventDict:
        """Drop a line that is below the level of its controller; a processor of structlog.

        Raises:
            structlog.DropEvent: it is below.
        """
        if self._controllers or self.least != self._default:
            controller = event.get("controller")
            least = self._controllers.get(str(controller), self._default)
            if _RANKS.get(_NAMES.get(method, method), least) < least:
                raise structlog.DropEvent
        return event


LEVELS: Final = LogLevels()
"""Those of this process."""


def read_levels(text: str, where: str) -> tuple[LogLevel, Mapping[str, LogLevel]]:
    """Read `default: info` and `controllers: {copier: debug}`, of YAML.

    Returns:
        The default, and the levels by controller.

    Raises:
        ConfigError: it is something else.
    """
    import yaml  # noqa: PLC0415 -- import cost of commands

    try:
        tree: object = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ConfigError(f"{where}: not YAML: {' '.join(str(e).split())}") from e
    fields = cast("dict[str, object]", tree) if isinstance(tree, dict) else {}
    controllers = cast("object", fields.get("controllers") or {})
    if unknown := sorted(map(str, fields.keys() - {"default", "controllers"})):
        raise ConfigError(f"{where}: unknown field {unknown[0]!r}; there are default, controllers")
    if not fields or not isinstance(controllers, dict):
        raise ConfigError(f"{where}: needs `default: info`, and a map of levels in `controllers`")
    by_name: dict[str, LogLevel] = {
        str(name): check_level(level, f"{where}: controllers.{name}:")
        for name, level in cast("dict[object, object]", controllers).items()
    }
    return check_level(fields.get("default", "info"), f"{where}: default:"), by_name


async def follow_levels(file: pathlib.Path | None, *, every: float = READ_EVERY) -> None:
    """Use the levels of a file, now and after each change; those before it if it is unusable.

    Args:
        file: its path; without one nothing changes.
        every: seconds between two looks at it.
    """
    if file is None:
        await asyncio.Event().wait()
        return
    last: tuple[int, ...] | str = ()
    while True:
        now = _signature(file)
        if now != last:
            last = now
            _use(file)
        await asyncio.sleep(every)


def _signature(file: pathlib.Path) -> tuple[int, ...] | str:
    try:
        stat = file.stat()
    except OSError as e:
        return file_problem(e)
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def _use(file: pathlib.Path) -> None:
    try:
        default, controllers = read_levels(file.read_text(encoding="utf-8"), str(file))
    except (OSError, ValueError) as e:
        log.warning("log_levels_unreadable", file=str(file), error=file_problem(e))
    except ConfigError as e:
        log.warning("log_levels_unreadable", file=str(file), error=str(e))
    else:
        LEVELS.set(default, controllers)
        log.info("log_levels_changed", default=default, controllers=dict(controllers))
