"""Values in shell scripts arrive unchanged, or are refused; real shells are the judges."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.flows.language.templates import compile_template
from holdfast.flows.shell.words import UnsafePlace, UnusableValue, safe_script

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

NUL_SEPARATED = "import sys; sys.stdout.write('\\0'.join(sys.argv[1:]))"
SHOW = f'"{sys.executable}" -c "{NUL_SEPARATED.replace(chr(92), chr(92) * 2)}" '


def run(shell: str, script: str, scope: dict[str, Any]) -> str:
    """What the script writes; its environment holds nothing but the values and a way to find programs."""
    text, env = safe_script(compile_template(script), scope)
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
        ("\"$(printf '%sx' {{ v }})\"", [f"{HOSTILE}x"]),
        ('"$(printf \'%sx\' "{{ v }}")"', [f"{HOSTILE}x"]),
        ("\"$(printf '%sx' '{{ v }}')\" {{ v }}", [f"{HOSTILE}x", HOSTILE]),
        ('"$(case a in (b) echo 1;; a) printf %sx {{ v }};; esac)" {{ v }}', [f"{HOSTILE}x", HOSTILE]),
        ("`printf %s {{ n }}` {{ v }}", ["7", HOSTILE]),
        ('"${unset:-"a}b"}" {{ v }}', ["a}b", HOSTILE]),
        ("${unset:-'}'} '{{ v }}'", ["}", HOSTILE]),
        ('"$((1 + 2))" {{ v }}', ["3", HOSTILE]),
        ("a#b {{ v }} # it's {{ v }}", ["a#b", HOSTILE]),
        ("{% for i in list %} '{{ i }}'{% endfor %}", SCOPE["list"]),
        ("{{ v }} < /dev/null 2>&1", [HOSTILE]),
        ("\\\n  {{ v }} \\\n  '{{ v }}'", [HOSTILE, HOSTILE]),
    ],
)
def test_a_value_arrives_as_it_is(shell: str, words: str, expected: list[str]) -> None:
    assert arguments(shell, words) == expected


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("x={{ v }}; printf %s \"$x\"", HOSTILE),
        ("A=1 B={{ v }} sh -c 'printf %s \"$B\"'", HOSTILE),
        ("export B={{ v }}; sh -c 'printf %s \"$B\"'", HOSTILE),
        ("sh -c 'printf %s \"$1\"' sh {{ v }}", HOSTILE),
        ("cat <<END\n{{ v }}' \"\nEND\nprintf %s '{{ n }}'", f"{HOSTILE}' \"\n7"),
        ("cat <<-END | cat\n\tx{{ v }}\n\tEND\nprintf %s {{ n }}", f"x{HOSTILE}\n7"),
        ("cat <<A; cat <<B; printf x\n{{ v }}\nA\n{{ v }}'\nB\nprintf %s '{{ n }}'", f"{HOSTILE}\n{HOSTILE}'\nx7"),
        ("x=abc; printf %s ${#x} '{{ v }}'", f"3{HOSTILE}"),
        ("cat <<'A' <<B\nit's\nA\n{{ v }}\nB\n", f"{HOSTILE}\n"),
        ("cat <<A\n$(printf '%s' {{ v }})`printf x`\\$\nA\nprintf %s '{{ n }}'", f"{HOSTILE.rstrip(chr(10))}x$\n7"),
        ("case {{ v }} in\n  x|y) ;;\n  {{ v }}) printf %s {{ v }};;\nesac; printf %s '{{ n }}'", f"{HOSTILE}7"),
        ("for i in {{ list }}; do printf '<%s>' \"$i\"; done", "".join(f"<{each}>" for each in SCOPE["list"])),
        ("if [ {{ v }} = '{{ v }}' ] && [ \"{{ n }}\" -eq {{ n }} ]; then printf %s {{ v }}; else :; fi", HOSTILE),
        ("f() { printf %s \"$1\"; }; f {{ v }}", HOSTILE),
        ("(printf %s {{ v }}) | cat; { printf %s '{{ n }}'; }", f"{HOSTILE}7"),
        ("# don't {{ v }}\nprintf %s {{ v }}", HOSTILE),
        ("printf %s {{ v }} | (cat; printf %s {{ n }})", f"{HOSTILE}7"),
        ("true && printf %s {{ v }} || false", HOSTILE),
        ("! false; printf '%s' {{ v }} &\nwait", HOSTILE),
    ],
)  # fmt: skip
def test_a_value_is_only_data_in_a_script(shell: str, script: str, expected: str) -> None:
    assert run(shell, script, SCOPE) == expected


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a=({{ list }} x); printf '<%s>' \"${a[@]}\"", "".join(f"<{each}>" for each in [*SCOPE["list"], "x"])),
        ("[[ {{ v }} == \"{{ v }}\" && (-n '{{ v }}') ]] && printf %s {{ v }}", HOSTILE),
        ("cat <<< {{ v }}", f"{HOSTILE}\n"),
        ("cat <(printf %s {{ v }}) - < /dev/null", HOSTILE),
        ("printf %s $'it\\'s' '{{ v }}'", f"it's{HOSTILE}"),
    ],
)  # fmt: skip
def test_bash_has_more_places_for_values(script: str, expected: str) -> None:
    assert run("bash", script, SCOPE) == expected


REFUSED: dict[str, str] = {
    "{{ v }}": "it would be the command itself",
    '"{{ v }}" x': "it would be the command itself",
    "'{{ v }}'": "it would be the command itself",
    "true; {{ v }}": "it would be the command itself",
    "true | {{ v }}": "it would be the command itself",
    "if {{ v }}; then :; fi": "it would be the command itself",
    "echo $({{ v }})": "it would be the command itself",
    "A=1 {{ v }}": "it would be the command itself",
    "> out {{ v }}": "it would be the command itself",
    "case x in x) {{ v }};; esac": "it would be the command itself",
    "f() { {{ v }}; }": "it would be the command itself",
    "[[ a == b ]] && {{ v }}": "it would be the command itself",
    "eval {{ v }}": "eval runs its words",
    "eval echo '{{ v }}'": "eval runs its words",
    "trap {{ v }} EXIT": "trap runs its words",
    "let x={{ v }}": "let runs its words",
    "sh -c {{ v }}": "it would be code for sh",
    "sh -c 'echo {{ v }}'": "it would be code for sh",
    'sudo /bin/bash -xc "echo {{ v }}"': "it would be code for sudo",
    "python3 -c \"print('{{ v }}')\"": "it would be code for python3",
    "perl -ne '{{ v }}'": "it would be code for perl",
    "sh <<END\necho {{ v }}\nEND": "the here-document is a program",
    "python3 - <<END\n{{ v }}\nEND": "the here-document is a program",
    "echo $(({{ n }} + 1))": "in a calculation",
    "echo $[{{ n }}]": "in a calculation",
    "((x = {{ n }}))": "in a calculation",
    "for ((i={{ n }}; i<3; i++)); do :; done": "in a calculation",
    "[[ {{ v }} -eq 1 ]]": "[[ … ]] calculates",
    "[[ 1 -lt '{{ v }}' ]]": "[[ … ]] calculates",
    "a[{{ v }}]=1": "an index in [ ] is calculated",
    "a=([{{ v }}]=1)": "an index in [ ] is calculated",
    "declare -i x={{ v }}": "calculate with it",
    "unset {{ v }}": "a variable's name",
    "[ -v {{ v }} ]": "takes a variable's name",
    "printf -v {{ v }} x": "takes a variable's name",
    "echo ${x:-{{ v }}}": "inside ${…}",
    'echo "${x:-{{ v }}}"': "inside ${…}",
    "echo ${{ v }}": "cannot follow a $",
    'echo "${{ v }}"': "cannot follow a $",
    "echo \\{{ v }}": "cannot follow a backslash",
    'echo "\\{{ v }}"': "cannot follow a backslash",
    "echo $'{{ v }}'": "inside $'…'",
    "cat <<'END'\n\n{{ v }}\nEND": "is quoted",
    'cat <<"END"\n{{ v }}\nEND': "is quoted",
    "cat <<\\END\n{{ v }}\nEND": "is quoted",
    "cat <<{{ v }}\n": "end mark",
    'echo "`echo {{ v }}`"': "use $(…)",
    'echo "{{ v }}': "not closed",
    "echo '{{ v }}": "not closed",
    "echo $(echo {{ v }}": "not closed",
    "echo $((echo a) | cat) {{ v }}": "write ( ( for a subshell",
}


@pytest.mark.parametrize("script", REFUSED)
def test_a_place_where_a_value_could_do_harm_is_refused(script: str) -> None:
    with pytest.raises(UnsafePlace) as caught:
        safe_script(compile_template(script), SCOPE)

    assert REFUSED[script] in str(caught.value)
    assert "line " in str(caught.value)
    assert HOSTILE not in str(caught.value)


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
        ("echo {{ v }}" * 12, {"v": "x" * 99_999}, "write it to a file"),
        ("echo {{ v }}", {"v": object()}, "not plain data"),
        ("x={{ v }}", {"v": ["a", "touch /nowhere"]}, "must stand alone"),
        ("echo a{{ v }}", {"v": ["a", "b"]}, "must stand alone"),
        ("echo {{ v }}b", {"v": ["a", "b"]}, "must stand alone"),
        ("echo > {{ v }}", {"v": ["a", "b"]}, "must stand alone"),
        ("case a in {{ v }}) ;; esac", {"v": ["a", "b"]}, "must stand alone"),
    ],
)
def test_a_value_that_cannot_travel_is_refused(script: str, scope: dict[str, Any], words: str) -> None:
    with pytest.raises(UnusableValue, match=words):
        safe_script(compile_template(script), scope)


def test_a_script_without_values_is_left_alone() -> None:
    script = 'eval "$x"; echo $((1)) \'unclosed'

    assert safe_script(compile_template(script), {}) == (script, {})


def test_values_are_in_the_variables_and_not_in_the_script() -> None:
    script, env = safe_script(compile_template("echo {{ v }} '{{ v }}'"), {"v": "sesame"})

    assert script == "echo \"${HOLDFAST_VALUE_1}\" ''\"${HOLDFAST_VALUE_2}\"''"
    assert env == {"HOLDFAST_VALUE_1": "sesame", "HOLDFAST_VALUE_2": "sesame"}


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
    words += "\"$(printf %s. '{{ a }}')\""

    assert arguments(shell, words, scope) == [a, b, c, d, e, f"x{a}y", f"x {b} y", f"x {c} y", f"{a}."]


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


@pytest.mark.parametrize(
    "script",
    [
        'bash -ceu "{{ v }}"',
        'sh -cx "{{ v }}"',
        "bash -c -- {{ v }}",
        "sh -c -x {{ v }}",
        "bash <<< {{ v }}",
        "command eval {{ v }}",
        "builtin eval {{ v }}",
        "exec bash -c {{ v }}",
    ],
)
def test_a_value_is_no_program_however_the_interpreter_is_called(script: str) -> None:
    with pytest.raises(UnsafePlace, match="code"):
        safe_script(compile_template(script), {"v": "touch PWNED"})


@pytest.mark.parametrize(
    "script", ["bash -ceu 'echo \"$1\"' sh {{ v }}", "cat <<< {{ v }}", "bash -eu run.sh {{ v }}"]
)
def test_a_value_may_be_an_argument_of_a_program(script: str) -> None:
    assert "HOLDFAST_VALUE_1" in safe_script(compile_template(script), {"v": "x"})[0]
