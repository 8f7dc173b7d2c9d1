"""The columns of a table and what their cells cost, and the columns that most resources have."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fleetbus.kube.json_fields import Tree, look, text
from fleetbus.kube.path_budget import PathBudget
from fleetbus.process.human_time import parse_time, render_duration

Cell = str | int | float | bool | None
"""A value as in the Table of an API server; None is an empty cell."""

NONE: Final = "<none>"
UNSET: Final = "<unset>"
UNKNOWN: Final = "<unknown>"
INVALID: Final = "<invalid>"
DEFAULT_MARK: Final = " (default)"
"""Behind the name of the class that is used where none is named."""
TOO_COSTLY: Final = "<too costly>"
"""In place of a value that takes too much work to find."""
LONGEST_CELL: Final = 4_096
"""Characters; a column of a custom resource may select a whole object."""
CELL_STEPS: Final = 200
"""That every cell may take, whatever the others took."""
ROW_STEPS: Final = 20_000
"""For the cells of a row together; about 15 ms, which nothing interrupts."""
TABLE_STEPS: Final = 2_000_000
"""For the rows of a table together; afterwards each cell has its own steps only."""
ROW_CHARACTERS: Final = 16_384
"""Characters of all cells of a row: a page of a thousand rows must fit into memory many times."""


def _no_cell(_: Tree) -> Cell:
    return None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, like a columnDefinition of Kubernetes.

    Attributes:
        name: as an API server writes it: `Ready`, `Port(s)`.
        type: of the cells in OpenAPI: string, integer, number, boolean or date.
        format: of OpenAPI; `name` for the column that names the object.
        description: one sentence; may be empty.
        priority: 0 is always shown, more only with `-o wide`.
        cell: renders the cell of an object; may raise for one that no API server would store.
        in_list: makes `cell` for those objects of a list that are of one cluster, where a cell
            depends on the others; None where it does not.
    """

    name: str
    cell: Callable[[Tree], Cell] = _no_cell
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    in_list: Callable[[Sequence[Tree]], Callable[[Tree], Cell]] | None = None

    def render(self, tree: Tree, budget: PathBudget) -> Cell:
        """The cell of an object; `TOO_COSTLY` if it takes more steps than there are."""
        del budget  # the work of built-in columns does not depend on what somebody has declared
        try:
            return self.cell(tree)
        except Exception:  # noqa: BLE001 -- one object would end the table of all clusters
            return UNKNOWN

    def definition(self) -> dict[str, str | int]:
        """The column without its cells, as answers have it."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def column(name: str, cell: Callable[[Tree], Cell], *, type: str = "string") -> Column:  # noqa: A002
    """Make a column that is always shown."""
    return Column(name, cell, type=type)


def wide(name: str, cell: Callable[[Tree], Cell], *, type: str = "string") -> Column:  # noqa: A002
    """Make a column that only `-o wide` shows."""
    return Column(name, cell, type=type, priority=1)


_shown_at: Final = ContextVar[datetime | None]("shown_at", default=None)


@contextmanager
def ages_at(time: datetime | None) -> Generator[None]:
    """Render ages as they were at a time; None is now."""
    token = _shown_at.set(time)
    try:
        yield
    finally:
        _shown_at.reset(token)


def since(value: object) -> str:
    """Render how long ago a time is, as API servers do."""
    then = parse_time(value) if value else None
    if then is None:
        return UNKNOWN
    now = _shown_at.get() or datetime.now(UTC)
    return duration((now - then).total_seconds())


def duration(seconds: float) -> str:
    """Render a duration as API servers do; a negative one of over a second is invalid."""
    return INVALID if int(seconds) < -1 else render_duration(seconds)


def _age(tree: Tree) -> str:
    return since(look(tree, "metadata", "creationTimestamp"))


def _created_at(tree: Tree) -> str:
    return text(tree, "metadata", "creationTimestamp")


def name_of(tree: Tree) -> str:
    """The name of an object."""
    return text(tree, "metadata", "name")


NAME: Final = Column(
    "Name", name_of, format="name", description="Name must be unique within a namespace."
)
AGE: Final = Column("Age", _age, description="Time since the object was created.")
CREATED_AT: Final = Column(
    "Created At", _created_at, type="date", description="When the object was created."
)


class CellCosts:
    """Renders the rows of one table, within its budgets (rule A8).

    The columns of a custom resource are paths that somebody in a member has written, over objects
    that they have written too: together a few hundred bytes can ask for any amount of work.
    """

    def __init__(self) -> None:
        self._table = TABLE_STEPS

    def cells(self, columns: Sequence[Column], tree: Tree) -> list[Cell]:
        """The cells of an object; costly ones say so, and long ones are cut."""
        steps, characters = min(ROW_STEPS, self._table), ROW_CHARACTERS
        rendered: list[Cell] = []
        for column in columns:
            budget = PathBudget(max(CELL_STEPS, steps))
            cell = column.render(tree, budget)
            if isinstance(cell, str):
                cell = cell[: min(LONGEST_CELL, characters)]
                characters -= len(cell)
            rendered.append(cell)
            steps -= budget.spent
            self._table -= budget.spent
        return rendered
