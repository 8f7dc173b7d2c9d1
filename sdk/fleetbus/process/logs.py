"""Structured logs: a constant event name, then key-values; JSON in services, text at a desk."""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal, TextIO, get_args

import structlog

from fleetbus.errors import ConfigError
from fleetbus.process.error_text import render
from fleetbus.process.redact import without_secret_words

_OF_ERRORS: Final = ("error", "reason")
"""The fields that hold what an error says, in every line of every process."""
_LETTERS: Final = 1000


def _render_error(exc_info: structlog.typing.ExcInfo) -> str:
    return render(exc_info[1])


def _hide_secrets(
    _logger: structlog.typing.WrappedLogger, _level: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    for field in _OF_ERRORS:
        text = event.get(field)
        if isinstance(text, str):
            event[field] = without_secret_words(text, limit=_LETTERS)
    return event


def _hide_in_asyncio(
    _logger: structlog.typing.WrappedLogger, _level: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """What it says of a task or future that nobody awaited, shows what that one raised."""
    if event.get("logger") == "asyncio":
        event["event"] = without_secret_words(str(event["event"]), limit=_LETTERS)
    return event


_COMMON: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.ExceptionRenderer(_render_error),
    _hide_secrets,
)
LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]


def set_up_logs(log_format: LogFormat = "json", level: str = "info") -> None:
    """Configure structlog for this process, and the loggers of the standard library.

    Those only warn, unless a level is set on one; their lines look like the others and carry what
    is bound: in a reconcile, its controller, cluster, namespace, name, attempt and id.
    Tracebacks belong to errors that nobody expected: they are written in the text of the line. No
    line shows what variables hold, or what looks like a credential in the text of an error.

    Raises:
        ConfigError: there is no such level.
    """
    if level not in get_args(LogLevel):
        raise ConfigError(f"log level {level!r} is not one of {', '.join(get_args(LogLevel))}")
    threshold = logging.getLevelNamesMapping()[level.upper()]
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            pad_event_to=28,
            # Others show what variables hold, and take their time for it.
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    structlog.configure(
        processors=[*_COMMON, render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[standard_handler(render, sys.stderr)])


def standard_handler(
    render: structlog.typing.Processor, stream: TextIO
) -> logging.StreamHandler[TextIO]:
    """Writes the lines of standard-library loggers as structlog's are written."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_COMMON, structlog.stdlib.add_logger_name, _hide_in_asyncio],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    return handler
