"""Values in shell scripts arrive unchanged, or are refused; real shells are the judges."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.workflows.language.templates import compile_template
from holdfast.workflows.scripts import UnsafePlace, UnusableValue, check_script, program_problem, safe_script
from tests.workflows.shell_attacks import COMMANDS, PWN, REFUSED, TEMPLATES

SHELLS = [shell for shell in ("/bin/sh", shutil.which("bash")) if shell]
HOSTILE = "a'b\"c $HOME ${IFS} `id` $(id) ; && || | > /nowhere \n \\ \\\\ * ? ~ é # ! {a,b} <<EOF\n\tEOF\n"
SCOPE: dict[str, Any] = {
    "v": HOSTILE,
    "list": ["a b", "c'd", HOSTILE],
    "none": None,
    "empty": [],
    "n": 7,
    "yes": True,
}

SHOW = "./show "
"""A program of the workflow's own that writes its arguments with NULs between them."""


@pytest.fixture(scope="module", autouse=True)
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder, before = tmp_path_factory.mktemp("programs"), Path.cwd()
    show = folder / "show"
    show.write_text(f"#!{sys.executable}\nimport sys\nsys.stdout.write('\\0'.join(sys.argv[1:]))\n")
    show.chmod(0o755)
    os.chdir(folder)
    yield
    os.chdir(before)


def run(shell: str, script: str, scope: dict[str, Any]) -> str:
    """What the script writes; its environment holds nothing but the values and a way to find programs."""
    text, env = safe_script(compile_template(script), scope, ["./show"])
    done = subprocess.run(
        [shell, "-c", text], env={"PATH": os.environ["PATH"], **env}, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return done.stdout.decode()


def arguments(shell: str, words: str, scope: dict[str, Any] = SCOPE) -> list[str]:
    """The arguments that a program really gets."""
    return run(shell, SHOW + words, scope).split("\0")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("{{ v }}", [HOSTILE]),
        ('"{{ v }}"', [HOSTILE]),
        ("'{{ v }}'", [HOSTILE]),
        ("pre{{ v }}post", [f"pre{HOSTILE}post"]),
        ('"pre {{ v }} post"', [f"pre {HOSTILE} post"]),
        ("'pre {{ v }} post'", [f"pre {HOSTILE} post"]),
        ("'$x' '{{ v }}' '`'", ["$x", HOSTILE, "`"]),
        ("{{ v }}{{ v }}", [HOSTILE * 2]),
        ('"{{ v }}{{ n }}"', [f"{HOSTILE}7"]),
        ("--name={{ v }}", [f"--name={HOSTILE}"]),
        ("{{ list }}", SCOPE["list"]),
        ("x {{ list }} y", ["x", *SCOPE["list"], "y"]),
        ("'{{ [1, 2] }}' \"{{ [1, 2] }}\"", ["[1, 2]", "[1, 2]"]),
        ("x {{ empty }} y", ["x", "y"]),
        ("{{ none }} {{ n }} {{ yes }} {{ {'a': v} | length }}", ["", "7", "true", "1"]),
        (r"a\ b\'{{ v }}\"", [f"a b'{HOSTILE}\""]),
        (r'"\"{{ v }}\\"', [f'"{HOSTILE}\\']),
        ("{% for i in list %} '{{ i }}'{% endfor %}", SCOPE["list"]),
        ("{{ v }} < /dev/null 2>&1", [HOSTILE]),
        ("'a#b' {{ v }} # it's {{ v }}", ["a#b", HOSTILE]),
        ('$? "${HOME}" $HOME {{ v }}$HOME "$HOME{{ v }}"', ["0", "", HOSTILE, HOSTILE]),
        ("~{{ v }} *.nothing{{ n }}", [f"~{HOSTILE}", "*.nothing7"]),
        ("\\\n  {{ v }} \\\n  '{{ v }}'", [HOSTILE, HOSTILE]),
    ],
)
def test_a_value_arrives_as_it_is(shell: str, words: str, expected: list[str]) -> None:
    assert arguments(shell, words) == expected


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("if true; then printf %s {{ v }}; else :; fi", HOSTILE),
        ("while ! true; do echo no; done; until true; do echo no; done; printf %s {{ v }}", HOSTILE),
        ("{ printf %s {{ v }}; printf %s '{{ n }}'; } | cat", f"{HOSTILE}7"),
        ("# don't {{ v }}\nprintf %s {{ v }}", HOSTILE),
        ("true && printf %s {{ v }} || false", HOSTILE),
        ("set -eu\ncd .\ntest 1 = 1\n[ 1 != 2 ] && printf '%s\\n' \\\n  {{ n }}\nexit 0", "7\n"),
        ("printf '%s|%5.1f%%' {{ n }} {{ n }} 2>/dev/null", "7|  7.0%"),
        ("printf %s {{ n }} > {{ file }}; cat < {{ file }}; cat<{{ file }}; rm -- {{ file }}", "77"),
        ("printf %s {{ n }} >> \"{{ file }}\"; cat -- {{ file }}>&1; rm -- '{{ file }}'", "7"),
        ("printf '<%s>' {{ list }}", "".join(f"<{each}>" for each in SCOPE["list"])),
        ('if [ ! -d "$PATH" ] && test "$PATH" != ]; then printf %s {{ v }}; fi; true && exit $?', HOSTILE),
        ("{% if yes %}printf %s {{ v }}{% endif %}", HOSTILE),
    ],
)  # fmt: skip
def test_a_value_is_only_data_in_a_script(shell: str, script: str, expected: str) -> None:
    assert run(shell, script, {**SCOPE, "file": "-a b'c\"$(id).txt"}) == expected


ALL_REFUSED = [(script, reason) for reason, scripts in REFUSED.items() for script in scripts]


@pytest.mark.parametrize(("script", "reason"), ALL_REFUSED)
def test_a_script_that_is_more_than_commands_with_arguments_is_refused(script: str, reason: str) -> None:
    with pytest.raises(UnsafePlace) as caught:
        safe_script(compile_template(script), {**SCOPE, "l": SCOPE["list"]})

    assert reason in str(caught.value)
    assert "line " in str(caught.value) and "env: {NAME" in str(caught.value)
    assert HOSTILE not in str(caught.value)


@pytest.mark.parametrize(("script", "reason"), ALL_REFUSED)
def test_what_is_refused_when_it_runs_is_refused_when_it_is_read(script: str, reason: str) -> None:
    with pytest.raises(UnsafePlace) as caught:
        check_script(compile_template(script), [])

    assert reason in str(caught.value)


def test_a_refusal_names_the_line() -> None:
    with pytest.raises(UnsafePlace) as caught:
        safe_script(compile_template("echo {{ v }}\n\neval {{ v }}\n"), SCOPE)

    assert caught.value.line == 3
    assert "'eval {{ … }}'" in str(caught.value)
    assert isinstance(caught.value, HoldfastError)


@pytest.mark.parametrize(
    ("script", "scope", "words"),
    [
        ("echo {{ v }}", {"v": "a\0b"}, "NUL"),
        ("echo {{ v }}\0", {"v": "a"}, "NUL"),
        ("echo {{ v }}", {"v": "\ud800"}, "not valid Unicode"),
        ("echo {{ v }}", {"v": "x" * 100_001}, "write it to a file"),
        ("echo {{ v }} " * 12, {"v": "x" * 99_999}, "write it to a file"),
        ("echo {{ v }}", {"v": object()}, "not plain data"),
        ("echo a{{ v }}", {"v": ["a", "b"]}, "must stand alone"),
        ("echo {{ v }}b", {"v": ["a", "b"]}, "must stand alone"),
        ("echo > {{ v }}", {"v": ["a", "b"]}, "must stand alone"),
    ],
)
def test_a_value_that_cannot_travel_is_refused(script: str, scope: dict[str, Any], words: str) -> None:
    with pytest.raises(UnusableValue, match=words):
        safe_script(compile_template(script), scope)


def test_a_script_without_values_is_left_alone() -> None:
    script = 'eval "$x"; echo $((1)) \'unclosed'

    assert safe_script(compile_template(script), {}) == (script, {})
    check_script(compile_template(script), [])


def test_values_are_in_the_variables_and_not_in_the_script() -> None:
    script, env = safe_script(compile_template("echo {{ v }} '{{ v }}'"), {"v": "sesame"})

    assert script == "echo \"${HOLDFAST_VALUE_1}\" ''\"${HOLDFAST_VALUE_2}\"''"
    assert env == {"HOLDFAST_VALUE_1": "sesame", "HOLDFAST_VALUE_2": "sesame"}


@pytest.mark.parametrize(
    "script", ["python3 report.py {{ v }}", "python3 'report.py' {{ l }}", "x.sh {{ v }} | python3 report.py"]
)
def test_programs_that_the_step_names_take_values(script: str) -> None:
    scope = {"v": "x", "l": ["x"]}

    assert (
        "HOLDFAST_VALUE_1" in safe_script(compile_template(script), scope, ["x.sh", "python3 report.py"])[0]
    )


@pytest.mark.parametrize(
    "script",
    ["python3 -c {{ v }}", "python3 {{ v }}", "'python3' report.py {{ v }}", "python3 report.py2 {{ v }}"],
)
def test_a_program_is_named_with_the_words_that_follow_it(script: str) -> None:
    with pytest.raises(UnsafePlace):
        safe_script(compile_template(script), {"v": "x"}, ["python3 report.py"])


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "eval",
        "sh",
        "bash -c",
        "python3",
        "python3 -c",
        "timeout",
        "sudo",
        "/bin/sh",
        "a;b",
        "export",
        "echo",
        "A=1",
    ],
)
def test_what_runs_its_arguments_is_no_program_for_values(entry: str) -> None:
    assert program_problem(entry) is not None


@pytest.mark.parametrize("entry", ["./charge.sh", "python3 report.py", "bin/tool", "timeout 5 mytool", "git"])
def test_other_programs_can_be_named(entry: str) -> None:
    assert program_problem(entry) is None


@pytest.mark.no_cover
@pytest.mark.parametrize("shell", SHELLS)
def test_no_command_that_takes_values_runs_one(shell: str, tmp_path: Path) -> None:
    """Every command that is not refused, in every form, with values that some shells would run, in one process."""
    ran = 0
    for number, value in enumerate(PWN):
        folder = tmp_path / str(number)
        folder.mkdir()
        parts, variables = [], {}
        for command, form in itertools.product(COMMANDS, TEMPLATES):
            scope = {"v": value, "w": PWN[0], "l": [value, PWN[0]]}
            try:
                script, env = safe_script(compile_template(form.format(C=command)), scope)
            except HoldfastError:
                continue
            prefix = f"P{len(parts)}_"
            variables |= {prefix + name: text for name, text in env.items()}
            parts.append(f"( {script.replace('HOLDFAST_VALUE', prefix + 'HOLDFAST_VALUE')}\n)")
        ran += len(parts)
        subprocess.run(
            [shell, "-c", "\n".join(parts)],
            env={"PATH": os.environ["PATH"], "O": "-v", "N": PWN[0], **variables},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
        )
        assert not (folder / "PWNED").exists()
    assert ran > 500


any_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40) | st.lists(
    st.sampled_from(
        ["'", '"', "`", "$(", ")", "$", "\\", "\n", ";", "&&", " ", "id", "é", "#", "*", "EOF", "${x}"]
    )
).map("".join)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("shell", SHELLS)
@given(texts=st.lists(any_text, min_size=5, max_size=5))
def test_any_text_arrives_unchanged_in_every_context(shell: str, texts: list[str]) -> None:
    a, b, c, d, e = texts
    scope = {"a": a, "b": b, "c": c, "items": [d, e]}
    words = "{{ a }} \"{{ b }}\" '{{ c }}' {{ items }} x{{ a }}y \"x {{ b }} y\" 'x {{ c }} y' "

    assert arguments(shell, words, scope) == [a, b, c, d, e, f"x{a}y", f"x {b} y", f"x {c} y"]


PIECES = [
    "{{ v }}",
    "'",
    '"',
    "`",
    "$(",
    ")",
    "(",
    "\\",
    " ",
    "\n",
    ";",
    "echo ",
    "${",
    "}",
    "$((",
    "))",
    "<<E\n",
]
PIECES += [
    "E\n",
    "case x in ",
    "x) ",
    ";;",
    " esac",
    "# ",
    "[[ ",
    " ]]",
    "a=",
    "|",
    "$",
    "for i in ",
    "; do ",
    "done",
]
PIECES += ["&&", "echo {{ v }}", "\n", "'{{ v }}'", '"{{ v }}"', "<<-'E'\n", "${x:-", "<<E ", "x"]


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14))
def test_no_script_however_odd_makes_a_value_run(pieces: list[str]) -> None:
    value = "'; echo PWNED; \"; echo PWNED; `echo PWNED`; $(echo PWNED >&2)\necho PWNED\n)"
    try:
        script, env = safe_script(compile_template("".join(pieces)), {"v": value})
    except HoldfastError:
        return
    for shell in SHELLS:
        done = subprocess.run(
            [shell, "-c", script],
            env={"PATH": "", **env},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        lines = (done.stdout + done.stderr).replace(value.encode(), b"").split(b"\n")
        assert b"PWNED" not in lines
