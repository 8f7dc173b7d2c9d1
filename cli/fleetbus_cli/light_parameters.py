"""Keeps typer from loading pydantic for arguments that are what they should be already.

Typer 0.29 converts each value, defaults too, by a model of pydantic, which costs every command a
fifth of a second of CPU. A string for `str`, and a default, need no conversion, and one for a path
none that needs pydantic. Older and later versions of typer without these internals are left as they
are.
"""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any, get_args, get_origin

import typer.core

try:
    from typer._coercion import (  # pyright: ignore[reportPrivateUsage]
        RuntimeParam,
        build_runtime_param,
    )
except ImportError:
    RuntimeParam, build_runtime_param = None, None

if TYPE_CHECKING:
    from collections.abc import Callable


def spare_pydantic() -> None:
    """Convert only values that need it, in all command lines of this process."""
    if RuntimeParam is None or build_runtime_param is None:
        return
    if getattr(typer.core, "build_runtime_param", None) is build_runtime_param:
        typer.core.build_runtime_param = _wrap(RuntimeParam, build_runtime_param)  # pyright: ignore[reportPrivateImportUsage]


def _wrap(base: type[Any], build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    class Light(base):
        """Hands on what fits, and converts the others as typer does."""

        def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
            if self.parameter_info.parser is None and _fits(value, self.annotation):
                return list(value) if get_origin(self.annotation) is list else value
            if self.annotation is pathlib.Path and _is_path(value, self.parameter_info):
                return pathlib.Path(value)
            return build(param.type_descriptor).coerce(value, param=param, ctx=ctx)

    def build_light(descriptor: Any) -> Any:
        fields = {
            "parameter_info": descriptor.parameter_info,
            "annotation": descriptor.annotation,
        }
        return build(descriptor) if descriptor.file_annotation is not None else Light(**fields)

    return build_light


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value has exactly its type; a string for a number or a path has not."""
    if get_origin(annotation) is list and isinstance(value, (list, tuple)):
        return all(_fits(element, get_args(annotation)[0]) for element in value)  # pyright: ignore[reportUnknownVariableType]
    return type(value) is annotation


def _is_path(value: Any, info: Any) -> bool:
    """Whether a value is a path that typer would take as it is."""
    has_checks = info.exists or info.writable or info.resolve_path or info.path_type
    if type(value) is not str or has_checks or not (info.file_okay and info.dir_okay):
        return False
    return os.access(value, os.R_OK) or not pathlib.Path(value).exists()
