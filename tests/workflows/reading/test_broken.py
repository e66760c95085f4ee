"""Files that are wrong, one reason each: the message names the line and the cure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.reading.source import read_source
from holdfast.workflows.reading.validation import parse

FILES = sorted((Path(__file__).parents[1] / "broken").glob("*.yaml"))
EXPECT = re.compile(r"^# expect (\d+): (.+)$", re.MULTILINE)


def refused(path: Path) -> WorkflowInvalid:
    with pytest.raises(WorkflowInvalid) as caught:
        parse(read_source(path, env={}))
    return caught.value


def test_there_are_many_ways_to_be_wrong() -> None:
    assert len(FILES) >= 100


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_broken_file_is_refused_with_its_line_and_the_cure(path: Path) -> None:
    expected = EXPECT.findall(path.read_text("utf-8"))
    assert expected, "the file says at its end what is expected: # expect LINE: words"

    error = refused(path)

    assert isinstance(error, HoldfastError)
    for line, words in expected:
        told = [str(problem) for problem in error.problems if problem.position.line == int(line)]
        assert any(words in text for text in told), f"line {line}, {words!r}:\n{error}"
    assert {problem.position.line for problem in error.problems} == {int(line) for line, _ in expected}, error


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_problem_has_a_cure_and_none_is_in_the_words_of_a_library(path: Path) -> None:
    error = refused(path)

    for problem in error.problems:
        assert problem.hint, problem
        assert str(problem).startswith(f"{path}:{problem.position.line}:{problem.position.column}: ")
        assert problem.hint in str(error) and problem.message in str(error)
    for leak in (
        "pydantic",
        "jinja2",
        "yaml.",
        "Traceback",
        "<unicode string>",
        "function-after",
        "Input should",
    ):
        assert leak not in str(error).replace(str(path), "")
