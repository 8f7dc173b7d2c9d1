"""Every benchmark still runs: with tiny sizes, whose figures say nothing.

Those that start whole fleets run in `make scenarios` only: together they take two minutes.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from bench.main import BENCHMARKS

_NO_BENCHMARK = {"main", "test_smoke"}
_SMALL = {"snapshot", "workqueue"}


def test_every_benchmark_has_a_smoke_run():
    modules = {path.stem for path in Path(__file__).parent.glob("*.py")}
    assert modules - _NO_BENCHMARK == set(BENCHMARKS)


@pytest.mark.timeout(180)  # services start and stop, which takes long where cores are few
@pytest.mark.parametrize(
    "name",
    [
        benchmark if benchmark in _SMALL else pytest.param(benchmark, marks=pytest.mark.full)
        for benchmark in BENCHMARKS
    ],
)
async def test_a_benchmark_runs(name: str, capsys: pytest.CaptureFixture[str]):
    benchmark = importlib.import_module(f"bench.{name}")
    figures = await benchmark.measure(benchmark.TINY)
    benchmark.show(json.loads(json.dumps(figures)))
    assert capsys.readouterr().out.count("\n") > 2, "no table was printed"
