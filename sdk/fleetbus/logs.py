"""Structured logs: a constant event name, then key-values; JSON in services, text at a desk."""

from __future__ import annotations

import logging
import sys
from typing import Literal, get_args

import structlog

from fleetbus.errors import ConfigError

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]


def set_up_logs(log_format: LogFormat = "json", level: str = "info") -> None:
    """Configure structlog for this process; standard-library loggers only warn.

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
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
