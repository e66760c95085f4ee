"""Reading YAML strictly: what scalars mean, where things are, what is included, what is refused."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.workflows.reading import source as strict_yaml
from holdfast.workflows.reading.problems import Problem
from holdfast.workflows.reading.source import Position, Source, WorkflowInvalid, read_source

FLOW = Path("flow.yaml")
TEXTS = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029\ufeff\ufffe\uffff")
)
"""What JSON writes as it is, and YAML reads as it is."""
BROKEN = sorted((Path(__file__).parents[1] / "broken").glob("*.yaml"))
GOOD = sorted((Path(__file__).parents[1] / "good").glob("*.yaml"))


def read(text: str, **env: str) -> Source:
    return read_source(FLOW, env=env, text=text)


def refused(text: str | Path, **env: str) -> WorkflowInvalid:
    with pytest.raises(WorkflowInvalid) as caught:
        read_source(text, env=env) if isinstance(text, Path) else read(text, **env)
    return caught.value


@pytest.fixture(params=["C", "Python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Python":
        monkeypatch.setattr(strict_yaml, "_LOADER", yaml.SafeLoader)
    return str(request.param)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("NO", "NO"),
        ("on", "on"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("0123", "0123"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("0b11", "0b11"),
        ("1.2.3", "1.2.3"),
        ("-", "-"),
        ("+", "+"),
        ("=", "="),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'null'", "null"),
        ('"1"', "1"),
        ("0x1F", 31),
        ("0o17", 15),
        ("-7", -7),
        ("+7", 7),
        ("0", 0),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-0.5E-1", -0.05),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any, loader: str) -> None:
    found = read(f"x: {text}\n" if text != "-" else "x: '-'\n").data["x"]

    assert found == value and type(found) is type(value)


def test_on_and_yes_are_keys_like_others() -> None:
    assert read("on: 1\nyes: 2\n").data == {"on": 1, "yes": 2}


def test_both_loaders_read_the_same_data(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = [read_source(path, env={}).data for path in GOOD]
    monkeypatch.setattr(strict_yaml, "_LOADER", yaml.SafeLoader)

    assert [read_source(path, env={}).data for path in GOOD] == fast


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_the_slow_loader_refuses_what_the_fast_one_does(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome() -> Any:
        try:
            return read_source(path, env={}).data
        except WorkflowInvalid as error:
            return error.problems[0].position.line

    fast = outcome()
    monkeypatch.setattr(strict_yaml, "_LOADER", yaml.SafeLoader)
    slow = outcome()

    assert type(slow) is type(fast) and (slow == fast or abs(slow - fast) <= 1)


def test_the_place_of_every_key_and_value_is_known() -> None:
    source = read("a:\n  b: [1, {c: 2}]\n  dé: x\n")

    assert source.at(("a", "b")) == Position("flow.yaml", 2, 6)
    assert source.at(("a", "b"), key=True) == Position("flow.yaml", 2, 3)
    assert source.at(("a", "b", 1, "c")) == Position("flow.yaml", 2, 14)
    assert source.at(("a", "dé")) == Position("flow.yaml", 3, 7)
    assert str(source.at(("a",))) == "flow.yaml:2:3"


def test_the_place_of_what_is_not_there_is_that_of_what_is_around_it() -> None:
    source = read("a:\n  b: [1]\n")

    assert source.at(("a", "x", "y")) == source.at(("a",))
    assert source.at(("a", "x"), key=True) == source.at(("a",), key=True) == Position("flow.yaml", 1, 1)
    assert source.at(("a", "b", 7)) == source.at(("a", "b"))
    assert source.at(()) == Position("flow.yaml", 1, 1)


@pytest.mark.parametrize(
    ("text", "word", "line", "column"),
    [
        ("x: one two three\n", "two", 1, 8),
        ("x: 'it''s two three'\n", "two", 1, 11),
        ('x: "a\\tb two"\n', "two", 1, 10),
        ("x: |\n  one\n\n    two\n", "two", 4, 5),
        ("x: >-\n  one\n  more two\n", "two", 3, 8),
        ("x: one\n  more\n  two\n", "two", 3, 3),
        ("x: 'one\n\n  two'\n", "two", 3, 3),
    ],
)
def test_a_problem_inside_a_text_is_where_the_file_has_it(
    text: str, word: str, line: int, column: int
) -> None:
    source = read(text)
    problem = source.problem_inside(("x",), source.data["x"].index(word), "here", width=3)

    assert problem.position == Position("flow.yaml", line, column)
    assert str(problem).splitlines()[2].endswith("^^^")


@given(TEXTS, st.integers(0, 300))
def test_a_place_inside_any_text_is_found_without_failing(text: str, offset: int) -> None:
    source = read(json.dumps({"x": text.replace("$", "")}, ensure_ascii=False))

    assert source.data["x"] == text.replace("$", "")
    assert source.problem_inside(("x",), offset, "here").position.line >= 1


def test_a_problem_shows_its_line_and_points_at_the_place() -> None:
    source = read("steps:\n    rout: 1\n")

    assert str(
        source.problem(("steps", "rout"), "unknown field 'rout'", "did you mean 'routes'?", key=True)
    ) == (
        "flow.yaml:2:5: unknown field 'rout'\n    2 |     rout: 1\n      |     ^^^^\n  did you mean 'routes'?"
    )


def test_a_long_line_is_cut_around_the_place() -> None:
    source = read("a: {b: '" + "x" * 500 + "', c: 1}\n")
    lines = str(source.problem(("a", "c"), "here")).splitlines()

    assert all(len(line) < 130 for line in lines)
    assert lines[1][lines[2].index("^")] == "1"


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    error = refused("a: 1\na: 2\n3: x\nb: !!int '4'\nc: .inf\n")

    assert [problem.position.line for problem in error.problems] == [2, 3, 4, 5]
    assert str(error) == "\n".join(map(str, error.problems))


def test_very_many_problems_are_counted() -> None:
    error = refused("".join(f"{number}: x\n" for number in range(200)))

    assert len(error.problems) == 200
    assert str(error).endswith("and 150 more problems")


def test_an_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(refused("a: 1\na: 2\n")))

    assert error.problems[0].position.line == 2 and isinstance(error.problems[0], Problem)


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")

    source = read_source(path, env={})
    assert source.data == {"a": 1} and source.at(("a",), key=True).column == 1


@pytest.mark.parametrize(
    ("raw", "line", "cure"),
    [
        (b"a: 1\nb: \xff\n", 2, "save the file as UTF-8"),
        ("a: ä\n".encode("latin-1"), 1, "save the file as UTF-8"),
        ("a: 1\n".encode("utf-16"), 1, "save the file as UTF-8"),
        (b"\x00\x01\x02\x7fELF", 1, "is this a text file?"),
        (b"a: 1\n# " + b"x" * 1_000_000, 1, "split it into workflows"),
    ],
)
def test_what_is_no_text_or_too_much_is_refused(raw: bytes, line: int, cure: str, tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_bytes(raw)

    problem = refused(path).problems[0]
    assert problem.position.line == line and cure in problem.hint


def test_a_file_that_is_not_there_or_a_folder_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.yaml", tmp_path):
        assert "cannot be read" in str(refused(path))


def test_aliases_are_written_out_and_shared_by_none() -> None:
    data = read("a: &a {x: [1]}\nb: *a\nc: [*a, *a]\n").data

    assert data["b"] == data["c"][1] == {"x": [1]}
    assert data["b"] is not data["a"] and data["c"][0]["x"] is not data["c"][1]["x"]


def test_an_anchor_may_be_used_again() -> None:
    assert read("a: &x 1\nb: &x 2\nc: *x\n").data == {"a": 1, "b": 2, "c": 2}


def test_text_cannot_be_multiplied_by_aliases() -> None:
    error = refused(f"a: &a '{'x' * 200_000}'\nb: [{', '.join(['*a'] * 100)}]\n")

    assert "too much text" in str(error) and error.problems[0].position.line == 2


def test_depth_cannot_be_hidden_behind_aliases() -> None:
    lines = ["a0: &a0 [1]"] + [f"a{n}: &a{n} [[[[[[[[[[*a{n - 1}]]]]]]]]]]" for n in range(1, 9)]

    assert "nested more than 50 deep" in str(refused("\n".join(lines) + "\n"))


@pytest.mark.parametrize(
    "junk", ["[" * 100_000, "{a: " * 50_000, "- " * 100_000, "? " * 20_000, "&a " * 1000]
)
def test_deep_or_odd_structures_end_quickly(junk: str, loader: str) -> None:
    assert refused(junk + "\n").problems


@pytest.mark.no_cover
def test_a_file_of_very_many_values_is_refused() -> None:
    assert "more than 100,000 values" in str(refused("[" + "1," * 150_000 + "]\n"))


# The environment.


def test_variables_are_put_in() -> None:
    source = read('a: "${X} and ${Y:-why}"\nb: "${Y:-}"\nc: $${X}\nd: ${X:-d}\n', X="ex")

    assert source.data == {"a": "ex and why", "b": "", "c": "${X}", "d": "ex"}


def test_other_dollars_are_left_alone() -> None:
    text = "a: $X $(pwd) ${workflow.name} ${} ${1} ${X:?no} $$ ${a-b}\n"

    assert read(text, X="ex").data["a"] == text[3:].strip()


def test_a_variable_alone_and_without_quotes_may_be_a_number() -> None:
    source = read(
        "a: ${N}\nb: '${N}'\nc: n${N}\nd: ${T:-true}\ne: ${EMPTY}\nf: ${NULL}\n", N="8", EMPTY="", NULL="null"
    )

    assert source.data == {"a": 8, "b": "8", "c": "n8", "d": True, "e": "", "f": "null"}


def test_what_a_variable_holds_is_not_read_again() -> None:
    assert read("a: x ${X}\n", X="${Y} $${Z}").data["a"] == "x ${Y} $${Z}"


def test_shell_text_keeps_its_variables() -> None:
    source = read(
        "workflow:\n  hooks: {on_start: 'a ${X}'}\n  description: 'd ${X}'\n"
        "steps:\n"
        "  - shell: 'b ${X}'\n"
        "  - shell: {run: 'c ${X} $${X}', cwd: '${X}'}\n"
        "  - parallel: [{shell: 'e ${X}'}]\n"
        "  - parallel: {steps: [{shell: {run: 'f ${X}'}}]}\n"
        "  - set: {shell: 'g ${X}', run: 'h ${X}'}\n",
        X="ex",
    )
    steps = source.data["steps"]

    assert source.data["workflow"] == {"hooks": {"on_start": "a ${X}"}, "description": "d ex"}
    assert steps[0]["shell"] == "b ${X}"
    assert steps[1]["shell"] == {"run": "c ${X} $${X}", "cwd": "ex"}
    assert steps[2]["parallel"][0]["shell"] == "e ${X}"
    assert steps[3]["parallel"]["steps"][0]["shell"]["run"] == "f ${X}"
    assert steps[4]["set"] == {"shell": "g ex", "run": "h ex"}


def test_every_missing_variable_is_told_at_its_place() -> None:
    error = refused("a: 1\nb: |\n  one\n  two ${NONE}\nc: ${NEITHER}\n")

    assert [problem.position[1:] for problem in error.problems] == [(4, 7), (5, 4)]
    assert "NONE is not set" in error.problems[0].message


# Included files.


def folder(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path / "flow.yaml"


def test_a_file_s_text_is_included_as_it_is(tmp_path: Path) -> None:
    path = folder(
        tmp_path,
        flow_yaml="a: !file texts/a.md\nb: [!file texts/a.md]\n",
        texts__a_md="one ${X}\ntwo: {{ x }}\n",
    )

    source = read_source(path, env={})
    assert source.data == {"a": "one ${X}\ntwo: {{ x }}\n", "b": ["one ${X}\ntwo: {{ x }}\n"]}
    assert source.included == {"texts/a.md": "one ${X}\ntwo: {{ x }}\n"}
    assert source.at(("a",)) == Position(str(tmp_path / "texts/a.md"), 1, 1)
    problem = source.problem_inside(("a",), source.data["a"].index("{{"), "here")
    assert problem.position == Position(str(tmp_path / "texts/a.md"), 2, 6) and "two: {{ x }}" in str(problem)


def test_a_file_s_data_is_included_with_its_own_places(tmp_path: Path) -> None:
    path = folder(
        tmp_path,
        flow_yaml="x: !file parts/x.yaml\n",
        parts__x_yaml="# a part\na: ${X}\nmore: !file more.json\n",
        parts__more_json='{"b": [1, "t", null]}',
    )

    source = read_source(path, env={"X": "ex"})
    assert source.data == {"x": {"a": "ex", "more": {"b": [1, "t", None]}}}
    assert source.at(("x", "a")) == Position(str(tmp_path / "parts/x.yaml"), 2, 4)
    assert source.at(("x", "more", "b", 1)) == Position(str(tmp_path / "parts/more.json"), 1, 11)


def test_problems_of_an_included_file_name_that_file(tmp_path: Path) -> None:
    path = folder(tmp_path, flow_yaml="x: !file x.yaml\nx: 1\n", x_yaml="\na: 1\na: 2\nb: ${NONE}\n")

    error = refused(path)
    assert [Path(problem.position.file).name for problem in error.problems] == [
        "x.yaml",
        "x.yaml",
        "flow.yaml",
    ]
    assert [problem.position.line for problem in error.problems] == [3, 4, 2]


@pytest.mark.parametrize(
    "name", ["../out.txt", "a/../../out.txt", "/etc/hostname", "", "a\\..\\b", ".", "sub"]
)
def test_a_path_out_of_the_folder_or_to_no_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("outside")
    (tmp_path / "in/sub").mkdir(parents=True)
    path = tmp_path / "in/flow.yaml"
    path.write_text(f"a: !file '{name}'\n")

    problem = refused(path).problems[0]
    assert "cannot be included" in problem.message and "outside" not in str(problem)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("outside")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link.txt").symlink_to(tmp_path / "out.txt")
    (tmp_path / "in/flow.yaml").write_text("a: !file link.txt\n")

    assert "a symbolic link is not followed" in str(refused(tmp_path / "in/flow.yaml"))


@pytest.mark.parametrize("name", ["link.txt", "folder/real.txt"])
def test_a_link_within_the_folder_is_refused_too(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path, flow_yaml=f"a: !file {name}\n", real_txt="inside")
    (tmp_path / "link.txt").symlink_to("real.txt")
    (tmp_path / "folder").symlink_to(tmp_path)

    assert "a symbolic link is not followed; give the path of the file itself" in str(refused(path))


SWAPS = """
import os, sys
name, inside, outside = sys.argv[1:]
print("begun", flush=True)
while True:
    for target in (outside, inside):
        if target == outside:
            os.symlink(outside, "new")
        elif os.path.isdir(inside):
            os.rename(name, "gone"); os.unlink("gone"); os.mkdir(name); os.link(inside + "/x.txt", name + "/x.txt")
            continue
        else:
            os.link(inside, "new")
        if os.path.isdir(name) and not os.path.islink(name):
            os.unlink(name + "/x.txt"); os.rmdir(name)
        os.replace("new", name)
"""


@pytest.mark.parametrize("name", ["x.txt", "d/x.txt"])
def test_a_file_that_is_swapped_for_a_link_while_it_is_read(tmp_path: Path, name: str) -> None:
    """Another process swaps the file, or its folder, for a link to a secret and back, as fast as it can."""
    base, kept, out = (tmp_path / each for each in ("in", "kept", "out"))
    for each, text in ((base, ""), (kept, "inside"), (out, "outside")):
        each.mkdir()
        (each / "x.txt").write_text(text)
    first = PurePosixPath(name).parts[0]
    if first == "d":
        (base / "d").mkdir()
        os.link(kept / "x.txt", base / "d/x.txt")
    given = (kept, out) if first == "d" else (kept / "x.txt", out / "x.txt")
    swapping = subprocess.Popen(
        [sys.executable, "-c", SWAPS, first, *map(str, given)], cwd=base, stdout=subprocess.PIPE
    )
    try:
        assert swapping.stdout is not None and swapping.stdout.readline() == b"begun\n"
        found = {_included(base, name) for _ in range(4_000)}
        for _ in range(100_000):  # On a busy machine the other process may have stood still meanwhile.
            if "inside" in found:
                break
            found.add(_included(base, name))
    finally:
        swapping.kill()
        swapping.communicate()

    assert "outside" not in found and "inside" in found


def _included(base: Path, name: str) -> str | None:
    try:
        return str(read_source(base / "flow.yaml", env={}, text=f"a: !file {name}\n").data["a"])
    except WorkflowInvalid:
        return None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = folder(tmp_path, flow_yaml="a: !file pipe\n")
    os.mkfifo(tmp_path / "pipe")

    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert "is not a file" in str(refused(path))


def test_included_files_are_bounded(tmp_path: Path) -> None:
    path = folder(tmp_path, flow_yaml="a: !file big.txt\nb: !file bad.txt\n", big_txt="x" * 1_000_001)
    (tmp_path / "bad.txt").write_bytes(b"ok \xff")

    error = refused(path)
    assert "larger than 1,000,000 bytes" in error.problems[0].message
    assert "byte 4 of it is not UTF-8" in error.problems[1].message


def test_included_texts_count_together(tmp_path: Path) -> None:
    path = folder(tmp_path, flow_yaml=f"a: [{'!file t.txt, ' * 20}]\n", t_txt="x" * 900_000)

    assert "too much text" in str(refused(path))


def test_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    path = folder(
        tmp_path, flow_yaml="a: !file a.yaml\n", a_yaml="b: !file b.yaml\n", b_yaml="a: !file a.yaml\n"
    )

    assert "includes itself" in str(refused(path))


def test_the_digest_covers_the_file_and_what_it_includes(tmp_path: Path) -> None:
    path = folder(tmp_path, flow_yaml="a: !file a.txt\n", a_txt="one")
    first = read_source(path, env={})
    (tmp_path / "a.txt").write_text("two")
    second = read_source(path, env={})

    assert len(first.digest) == 64 and first.digest != second.digest
    kept = read_source(path, env={}, text=first.text, base=tmp_path, included=first.included)
    assert kept.digest == first.digest and kept.data == first.data


def test_a_text_without_a_file_is_read_relative_to_the_base(tmp_path: Path) -> None:
    folder(tmp_path, a_txt="one")

    source = read_source(Path("gone/flow.yaml"), env={}, text="a: !file a.txt\n", base=tmp_path)
    assert source.data == {"a": "one"} and source.base == tmp_path and source.path == Path("gone/flow.yaml")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXTS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
        max_leaves=12,
    )
)
def test_json_is_read_as_what_it_says(data: Any) -> None:
    text = json.dumps(data, ensure_ascii=False)
    assume("${" not in text)

    assert read(text).data == data


@given(st.text(max_size=300))
def test_any_text_is_data_or_refused(text: str) -> None:
    try:
        source = read(text)
    except WorkflowInvalid as error:
        assert error.problems and all(problem.hint for problem in error.problems)
    else:
        assert source.at(("x", 1)).line >= 1


@given(st.binary(max_size=300))
def test_any_bytes_are_data_or_refused(raw: bytes) -> None:
    try:
        read_source(FLOW, env={}, text=raw.decode("utf-8", "surrogateescape"))
    except WorkflowInvalid as error:
        assert error.problems
