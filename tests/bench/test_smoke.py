"""Every benchmark still runs: with tiny sizes, whose figures say nothing.

Those that start whole fleets run in `make scenarios` only: together they take more than a minute.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from bench.main import BENCHMARKS
from support.rigs.scenario import FULL

_NO_BENCHMARK = {"main", "test_smoke"}
_LONG = {"cost", "rebuild", "relist", "latency", "fleet", "distributor", "accounts"}


def test_every_benchmark_has_a_smoke_run():
    modules = {path.stem for path in Path(__file__).parent.glob("*.py")}
    assert modules - _NO_BENCHMARK == set(BENCHMARKS)


@pytest.mark.timeout(180)  # services start and stop, which takes long where cores are few
@pytest.mark.parametrize("name", BENCHMARKS)
async def test_a_benchmark_runs(name: str, capsys: pytest.CaptureFixture[str]):
    if name in _LONG and not FULL:
        pytest.skip("takes 10 s and more; `make scenarios` runs it")
    benchmark = importlib.import_module(f"bench.{name}")
    figures = await benchmark.measure(benchmark.TINY)
    benchmark.show(json.loads(json.dumps(figures)))
    assert capsys.readouterr().out.count("\n") > 2, "no table was printed"
