"""Structured logs: a constant event name, then key-values; as JSON, or as text for people."""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal, TextIO

import structlog

from fleetbus.process.error_text import render
from fleetbus.process.log_levels import LEVELS, check_level
from fleetbus.process.printer import printable, printable_lines
from fleetbus.process.redact import without_secret_words

_OF_ERRORS: Final = ("error", "reason")
"""The fields with messages of errors, in every log line of every process."""
_OF_SEVERAL_LINES: Final = ("exception", "stack")
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
    """Redact asyncio's messages about unawaited tasks, which quote their exceptions."""
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


class _PrintableRenderer(structlog.dev.ConsoleRenderer):
    """Replaces what a terminal would obey; JSON escapes it (rule S11)."""

    def __call__(
        self,
        logger: structlog.typing.WrappedLogger,
        name: str,
        event_dict: structlog.typing.EventDict,
    ) -> str:
        """Render a line, and the traceback below it."""
        for field, text in event_dict.items():
            if isinstance(text, str):
                has_lines = field in _OF_SEVERAL_LINES
                event_dict[field] = printable_lines(text) if has_lines else printable(text)
        return super().__call__(logger, name, event_dict)


def set_up_logs(log_format: LogFormat = "json", level: str = "info") -> None:
    """Configure structlog for this process, and the loggers of the standard library.

    The latter log warnings only, unless a level is set on one. Their lines have the same format and
    the same context: in a reconcile, its controller, cluster, namespace, name, attempt and id.
    Unexpected errors have a traceback as part of the line. No line shows the values of variables,
    or what looks like a credential in the message of an error.

    Raises:
        ConfigError: the level is unknown.
    """
    threshold = check_level(level)
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else _PrintableRenderer(
            colors=sys.stderr.isatty(),
            pad_event_to=28,
            # Other formatters show the values of variables, and are slow.
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    structlog.configure(
        processors=[_COMMON[0], LEVELS.drop_quiet, *_COMMON[1:], render],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    LEVELS.set(threshold)
    logging.basicConfig(level=logging.WARNING, handlers=[standard_handler(render, sys.stderr)])


def standard_handler(
    render: structlog.typing.Processor, stream: TextIO
) -> logging.StreamHandler[TextIO]:
    """A handler that formats the lines of standard-library loggers like structlog's."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_COMMON, structlog.stdlib.add_logger_name, _hide_in_asyncio],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    return handler
