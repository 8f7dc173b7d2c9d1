"""Describes errors of files; apart from `error_text`, which imports asyncio."""

from __future__ import annotations


def file_problem(error: OSError | ValueError) -> str:
    """Why a file cannot be read, without its path, which the message names already."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return (isinstance(error, OSError) and error.strerror) or str(error)
