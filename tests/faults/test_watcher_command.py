"""Each seed that `make faults` runs can be repeated with one command."""

from __future__ import annotations

import pytest

from faults.watchers.main import command_of, plans_of, read_arguments


def test_a_seed_is_repeated_by_one_command():
    (plan,) = plans_of(read_arguments(["--seed", "7", "--kills", "3", "--losses", "0"]))
    words = command_of(plan, cut=False).split()
    assert words[:3] == ["python", "tests/run.py", "faults.watchers"]
    assert plans_of(read_arguments(words[3:])) == [plan]


def test_the_cut_has_a_fresh_seed_and_tells_it():
    plans = [plans_of(read_arguments(["--cut"]))[0] for _ in range(5)]
    assert len({plan.seed for plan in plans}) > 1
    words = command_of(plans[0], cut=True).split()
    assert plans_of(read_arguments(words[3:])) == plans[:1]


@pytest.mark.parametrize("wrong", ["--seeds=x", "--kinds=nonsense", "--mutation=nonsense"])
def test_what_makes_no_sense_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        read_arguments([wrong])
    assert wrong.partition("=")[0] in capsys.readouterr().err
