"""Structured logs: a constant event name, then key-values; JSON in services, text at a desk."""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal, TextIO, get_args

import structlog

from fleetbus.errors import ConfigError

_COMMON: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)
LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]


def set_up_logs(log_format: LogFormat = "json", level: str = "info") -> None:
    """Configure structlog for this process, and the loggers of the standard library.

    Those only warn, unless a level is set on one; their lines look like the others and carry what
    is bound: in a reconcile, its controller, cluster, namespace, name, attempt and id.
    Tracebacks belong to errors that nobody expected: they are written in the text of the line.

    Raises:
        ConfigError: there is no such level.
    """
    if level not in get_args(LogLevel):
        raise ConfigError(f"log level {level!r} is not one of {', '.join(get_args(LogLevel))}")
    threshold = logging.getLevelNamesMapping()[level.upper()]
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=28)
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
            foreign_pre_chain=[*_COMMON, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    return handler
