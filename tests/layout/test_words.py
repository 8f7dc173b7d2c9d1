"""Old words of ours stay out of code, documents and file names where the field has better ones.

The two tables are the documentation: the old word, and the one to write instead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from support.rows import each_row

ROOT: Final = Path(__file__).parents[2]
_HERE: Final = Path(__file__)
_ENDINGS: Final = (
    *(".py", ".lua", ".md", ".toml", ".yaml", ".yml", ".tpl", ".go", ".mjs"),
    *(".js", ".css", ".html"),
)
_FOREIGN: Final = {"node_modules", "reports", "site"}

# A word in lower case is also found with a capital, with an ending (`owes`, `judged`), and as a
# part of a snake_case name; one in capitals is the name of a class, found as it is.
WORDS: Final = {
    # Buffers, workers and queues.
    "InOrder": "FifoBuffer",
    "ByCluster": "FairBuffer",
    "lane": "concurrency or capacity: how many runs or commands go at a time",
    "crowd": "burst, and cooldown for the pause after it",
    "bell": "signal",
    "ring": "notify",
    "LeaseLost": "LeaseLostError",
    # Offsets, lists and resyncs.
    "beacon": "applied-offset checkpoint, OffsetCheckpoint",
    "wish": "resync request",
    "Wanted": "resync request",
    "debt": "pending resync",
    "owe": "to have a pending resync, or a pending anything",
    "priming": "initial sync",
    "primed": "synced",
    "foretold": "announced",
    "Sight": "LastSeen",
    # Watchers and clusters.
    "twin": "peer replica",
    "Chain": "LossDetector: finds the gaps between heartbeats",
    "Links": "Connections",
    "Reach": "Reachability",
    "pulse": "liveness",
    "type_ends": "removed types: their end is published as an epoch without objects",
    "TypeEnds": "removed types",
    # Decisions, errors and clients.
    "verdict": "Decision",
    "judge": "evaluate, decide; a check in a test observes or compares",
    "Rests": "Unavailable",
    "misuse": "foreign keys: keys of another program in our store",
    "Shadow": "DryRunClient",
    "Drive": "runner",
    "Stretches": "LogOnce",
    "half_made": "a module of bus/patches, named for the defect of the library",
    "QuickClient": "a module of bus/patches, named for the defect of the library",
    # Reports and logs.
    "told": "reported, logged, published",
    "hear": "receive, be notified",
    "reconcile_answered_nonsense": "invalid_reconcile_result",
    "goodbye_unsaid": "final_heartbeat_not_sent",
    "event_loop_goes_on": "event_loop_recovered",
}
PHRASES: Final = {
    r"_Look\b": "Evaluation",
    r"_Stand\b": "Match",
    r"(?:is|stands) there twice\b": "duplicate ..., is listed twice",
    r"more than nothing\b": "positive",
    r"[Aa] text\b": "a string",
    r"[Ll]ists? of texts\b": "a list of strings",
    r"no YAML\b": "invalid YAML",
    r"[Nn]obody answers on\b": "no responders on",
    r"the value is another\b": "test failed: value differs",
    r'"""(?:Of|How|What|Say that) ': "a verb for what it does, or a noun phrase for what it is",
}


def _pattern(word: str) -> str:
    if word[0].isupper():
        return word
    return f"[{word[0]}{word[0].upper()}]{word[1:]}(?:e?s|e?d|ing)?"


_INSTEAD: Final = {_pattern(word): instead for word, instead in WORDS.items()} | PHRASES
_OLD: Final = re.compile(
    rf"(?<![A-Za-z])(?:{'|'.join(map(_pattern, WORDS))})(?![A-Za-z])|(?<!\w)(?:{'|'.join(PHRASES)})"
)


def _findings(text: str) -> list[str]:
    found: list[str] = []
    for match in _OLD.finditer(text):
        instead = next(_INSTEAD[old] for old in _INSTEAD if re.fullmatch(old, match[0]))
        line = text.count("\n", 0, match.start()) + 1
        found.append(f"{line}: {match[0]!r}, write: {instead}")
    return found


def _files() -> dict[str, Path]:
    tops = [top for top in ROOT.iterdir() if top.name[0] != "." and top.name not in _FOREIGN]
    files = [file for top in tops for file in (top.rglob("*") if top.is_dir() else [top])]
    return {
        str(file.relative_to(ROOT)): file
        for file in sorted(files)
        if file.name.endswith(_ENDINGS) and file != _HERE and _FOREIGN.isdisjoint(file.parts)
    }


def test_no_old_word_is_in_a_file_or_its_name():
    files = _files()
    assert len(files) > 1_000, "most files were not searched"
    found = [f"{name} (its name): {one}" for name in files for one in _findings(name)]
    for name, file in files.items():
        found += [f"{name}:{one}" for one in _findings(file.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@each_row("word", WORDS)
def test_an_old_word_is_found_alone_and_within_a_name(word: str):
    assert len(_findings(f"{word} and last_{word}_of, but not in x{word}y")) == 2


@each_row(
    "text",
    [
        "class _Look:",
        "def find(stand: _Stand) -> None: ...",
        "The name is there twice.",
        "It must be more than nothing.",
        "That is not a text.",
        "Lists of texts",
        "This is no YAML.",
        "Nobody answers on the subject.",
        "the value is another one",
        '"""What it does."""',
        '"""Say that it ended."""',
    ],
)
def test_an_old_phrase_is_found(text: str):
    assert len(_findings(text)) == 1
