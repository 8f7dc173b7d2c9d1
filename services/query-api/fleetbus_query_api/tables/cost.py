"""Bounds what the cells of a table cost (rule A8).

The columns of a custom resource are paths that somebody in a member has written, over objects that
they have written too: together a few hundred bytes can ask for any amount of work and text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleetbus.kube.json_fields import Tree
from fleetbus.kube.path_budget import PathBudget
from fleetbus_query_api.tables.column import LONGEST_CELL, Cell, Column

CELL_STEPS: Final = 200
"""That every cell may take, whatever the others took."""
ROW_STEPS: Final = 20_000
"""For the cells of a row together; about 15 ms, which nothing interrupts."""
TABLE_STEPS: Final = 2_000_000
"""For the rows of a table together; afterwards each cell has its own steps only."""
ROW_CHARACTERS: Final = 16_384
"""Characters of all cells of a row: a page of a thousand rows must fit into memory many times."""


class CellCosts:
    """Renders the rows of one table, within its budgets."""

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
