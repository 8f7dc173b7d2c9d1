"""JSONPath templates print what client-go prints, or are refused."""

from __future__ import annotations

import json
from typing import Final

import pytest

from fleetbus.kube.jsonpath import InvalidJsonPath, JsonPathTemplate
from support.client_go.goldens import JSONPATHS, render_with_client_go
from support.client_go.jsonpaths import OBJECT, templates
from support.processes.go_informer import find_go_program

_REFUSED: Final = {
    # Malformed, and there an empty field or a range to the end.
    *("{.kind.}", "{.metadata.name.}", "{range .a}", "{.a(}"),
    # Each descent multiplies the cost of the others (rule A8).
    "{..a..b}",
}
"""Templates that client-go renders and we refuse."""
_UNORDERED: Final = {
    # Go visits maps in random order, and visits no values that have no children.
    *("{.metadata.labels.*}", "{range .metadata.labels.*}{@} {end}", "{..}", "{.spec..}"),
}


def _render(template: str) -> dict[str, str]:
    try:
        return {"output": JsonPathTemplate.parse(template).render(OBJECT)}
    except InvalidJsonPath as e:
        return {"error": str(e)}


def test_each_template_is_rendered_like_client_go_or_refused():
    expected = json.loads(JSONPATHS.read_text())
    assert list(expected) == sorted(templates()), "run tests/run.py support.client_go.goldens"
    differences = {
        template: (actual, answer)
        for template, answer in expected.items()
        if template not in _REFUSED | _UNORDERED
        and (actual := _render(template)) != answer
        and not ("error" in actual and "error" in answer)
    }
    assert differences == {}
    assert [each for each in sorted(_REFUSED) if "error" not in _render(each)] == []


@pytest.mark.full
def test_the_answers_beside_the_tests_are_those_of_client_go():
    program = find_go_program("jsonpath")
    if program is None:
        pytest.skip("needs Go 1.24 and the modules of tests/bench/peers/informer/go.mod")
    actual, recorded_answers = render_with_client_go(program), json.loads(JSONPATHS.read_text())
    for template in _UNORDERED:
        del actual[template], recorded_answers[template]
    assert actual == recorded_answers
