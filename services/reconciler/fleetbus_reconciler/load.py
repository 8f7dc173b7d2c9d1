"""The controllers of several modules: one that cannot be used does not keep the others from work.

It is told in the log, and as what the process is not ready for: a rollout stops there, while what
ran before goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.controller.load import distinct, load_controllers
from fleetbus.errors import ConfigError
from fleetbus.process.health import Health
from fleetbus.worker.host import check_controllers

log = structlog.get_logger()


def load_usable(
    modules: Sequence[str], others: Sequence[Controller], health: Health
) -> list[Controller]:
    """The controllers of all modules that can be used, behind the others.

    Args:
        modules: Python files or modules.
        others: what runs besides.
        health: becomes not ready for each module that cannot be used.

    Raises:
        ConfigError: nothing is left to run; the first problem.
    """
    hosted = list(others)
    problems: dict[str, ConfigError] = {}
    for name in distinct(modules):
        try:
            found = [one for one in load_controllers([name]) if one not in hosted]
            check_controllers([*hosted, *found])
        except ConfigError as e:
            problems[name] = e
        else:
            hosted += found
    if problems and not hosted:
        raise next(iter(problems.values()))
    for name, problem in problems.items():
        log.error("module_unusable", module=name, error=str(problem))
        health.ready_when(f"module {name}", lambda told=str(problem): told)
    return hosted
