"""A program can follow docs/install.md, and turn on `ha` later."""

from __future__ import annotations

import yaml

from e2e.install import CHECKS
from e2e.install_page import INSTALL_PAGE, all_steps, install_steps
from support.api.rendered_chart import render


def test_every_check_belongs_to_a_step_and_every_file_is_used():
    steps = all_steps()
    assert set(CHECKS) <= {step.name for step in steps if not step.is_file}
    commands = "".join(step.text for step in steps if not step.is_file)
    for step in steps:
        assert not step.is_file or step.name in commands, step.name


def test_the_chart_accepts_the_values():
    files = [step for step in install_steps(INSTALL_PAGE.read_text()) if step.name == "values.yaml"]
    assert len(files) == 2
    for file in files:
        assert render(yaml.load(file.text, yaml.CSafeLoader), name="fleetbus")
