"""Structured logs: a constant event name, then key-values; JSON in services, text at a desk."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["json", "text"]


def set_up_logs(log_format: LogFormat = "json", level: str = "info") -> None:
    """Configure structlog for this process; standard-library loggers only warn.

    Tracebacks belong to errors that nobody expected: they are written in the text of the line.
    """
    threshold = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
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
