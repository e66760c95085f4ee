"""What may not come back: short modules with one importer, imports inside functions, ruled-out words."""

from __future__ import annotations

from pathlib import Path

from tests.figures import imports_inside_functions, lengths_of_functions, modules, short_with_one_importer
from tests.words import everywhere, uses

LONGEST_MODULE, LONGEST_FUNCTION, IMPORTS_INSIDE_FUNCTIONS = 700, 82, 60
FOUND = modules()


def test_few_short_modules_have_a_single_importer() -> None:
    alone = short_with_one_importer(FOUND)

    assert len(alone) <= 5, f"merge these into their only importer: {alone}"


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    assert {module.name: module.lines for module in FOUND if module.lines > LONGEST_MODULE} == {}


def test_functions_stay_short() -> None:
    lengths = sorted(lengths_of_functions(FOUND))

    assert lengths[int(len(lengths) * 0.95)] <= 30 and lengths[-1] <= LONGEST_FUNCTION


def test_few_imports_stand_inside_functions() -> None:
    counts = imports_inside_functions(FOUND)

    assert counts.total() <= IMPORTS_INSIDE_FUNCTIONS, counts.most_common(10)


def test_a_ruled_out_word_is_found_in_names_and_prose(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        'class RunWish:\n    """Drive it."""\n\n    take_up = 1\n    a_control_flow = 2\n'
    )

    assert [(use.line, use.word) for use in uses([tmp_path])] == [(1, "wish"), (2, "drive"), (4, "take up")]


def test_no_ruled_out_word_is_in_source_documentation_and_help() -> None:
    found = [f"{use.path}:{use.line}: {use.word}" for use in uses(everywhere())]

    assert found == [], "docs/glossary.md says which words to use instead"
