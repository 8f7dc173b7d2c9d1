"""Names are nouns and verbs: few locals are pronouns or bare participles.

Of 1,000 bindings (arguments, variables, fields) a member has at most `LIMIT` such names.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from support.rows import each_row

ROOT: Final = Path(__file__).parents[2]

# Instead: what it is. `for pod in pods`, `resources = find_resources()`, `deletion: Held`.
WORDS: Final = {
    *("one", "ones", "another", "found", "held", "known", "wanted", "given", "kept", "made", "got"),
    *("seen", "said", "asked", "shown", "meant", "whole", "rest", "own", "ours"),
    *("theirs", "it", "that", "these", "those", "they", "what", "which", "thing", "things"),
}
LIMIT: Final = 15
_SHOWN: Final = 5
_SOURCE: Final = """
def f(found, *ones): ...

class C:
    held: int

for one in range(3): pass
names = [it for it in ()]
if (known := 1): pass
pick = lambda given: given
match names:
    case [first, *rest]: pass
"""
_MEMBERS: Final = ("cli", "devfleet", "emulator", "examples", "proto", "sdk", "tests")


class Count(NamedTuple):
    """The bindings of some files, and the names among them that are in `WORDS`, by file."""

    bindings: int
    names: Mapping[str, Counter[str]]

    @property
    def per_thousand(self) -> float:
        return 1_000 * sum(found.total() for found in self.names.values()) / max(1, self.bindings)

    def worst(self) -> str:
        files = sorted(self.names.items(), key=lambda item: (-item[1].total(), item[0]))
        return "\n".join(
            f"{file}: {', '.join(f'{count} {name}' for name, count in names.most_common())}"
            for file, names in files[:_SHOWN]
        )


def _bindings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def count_names(sources: Mapping[str, str]) -> Count:
    bindings, names = 0, dict[str, Counter[str]]()
    for file, source in sources.items():
        bound = list(_bindings(source))
        bindings += len(bound)
        if fillers := Counter(name for name in bound if name in WORDS):
            names[file] = fillers
    return Count(bindings, names)


def _members() -> list[str]:
    services = sorted(file.parent.name for file in ROOT.glob("services/*/pyproject.toml"))
    return [*_MEMBERS, *(f"services/{name}" for name in services)]


def _sources(member: str) -> dict[str, str]:
    return {
        str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
        for file in sorted((ROOT / member).rglob("*.py"))
    }


def complaint(member: str, count: Count) -> str:
    """Say why the names of a member are refused; empty if they are not."""
    rate = count.per_thousand
    if rate <= LIMIT:
        return ""
    return (
        f"{member}: {rate:.1f} of 1,000 names say nothing, at most {LIMIT} may: call each"
        f" after what it is. Most are in\n{count.worst()}"
    )


@each_row("member", _members())
def test_few_names_are_pronouns_or_participles(member: str):
    count = count_names(_sources(member))
    assert count.bindings, "no file was read"
    problem = complaint(member, count)
    assert not problem, problem


def test_arguments_variables_and_fields_are_counted():
    count = count_names({"a.py": _SOURCE, "b.py": "pods = 1"})
    fillers = {"found", "ones", "held", "one", "it", "known", "given", "rest"}
    assert count.names == {"a.py": Counter(fillers)}
    assert count.bindings == len(fillers) + len({"names", "pick", "first", "pods"})


@each_row(
    ("names", "start"),
    [(16, "sdk: 16.0 of 1,000 names say nothing, at most 15 may"), (15, ""), (0, "")],
)
def test_more_is_refused(names: int, start: str):
    count = Count(1_000, {"a.py": Counter(one=names)} if names else {})
    problem = complaint("sdk", count)
    assert problem.startswith(start) if start else not problem


def test_the_files_with_the_most_come_first():
    sources = {f"{n}.py": "".join(f"one = {i}\n" for i in range(n)) for n in range(1, 8)}
    worst = count_names(sources).worst()
    assert worst.splitlines() == [f"{n}.py: {n} one" for n in (7, 6, 5, 4, 3)]
