"""Values in shell scripts: whatever script they stand in, they are never part of it, nor run by any shell."""

from __future__ import annotations

import re
import shutil
import subprocess
from random import Random

from holdfast.errors import HoldfastError
from holdfast.workflows.language.templates import compile_template
from holdfast.workflows.scripts import safe_script
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.target import Check, Target, Wrong, own_folder
from tests.workflows.test_scripts import PIECES

VALUE = "'; echo PWNED; \"; echo PWNED; `echo PWNED`; $(echo PWNED >&2)\necho PWNED\n)"
MORE_PIECES = (
    *PIECES, "{{ l }}", "{{ l }} ", "\\\n", "$'", "$\"", "$[", "]", "<<<", ">|", "2>", "&", "((", "f() { ",
    "; }", "{ ", "if ", "then ", "fi", "; then ", "printf '%s' ", "printf ", "cat ", "-v ", "echo -n ",
    "eval ", "sh -c ", "trap ", "test ", "[ ", " ]", "printf %s ", "<<\\E\n", "<<\"E\"\n", "\tE\n", "!", "~",
    "*", "%", "${#", "${v//", "<(", "| ", " || ", " && ", "; ", "true", "set -eu\n", "12>", ">&2", "{{ w }} ", "%n ",
    "a[", "]=", "+=", "export ", "case {{ v }} in ", "\x01", "é", "#", "let ", "declare ", "-c ", "$((1+", "`",
    "\\`", "\\$", "\\\"", "\\\\", "$x", "${x}", "\"$x{{ v }}\" ", "x{{ v }}y ", "echo {{ v }} ", "\necho {{ v }}",
)  # fmt: skip
RUN_PIECES = (
    "echo {{ v }}", "echo {{ l }}", "printf '%s' {{ l }}", "printf %s {{ w }}", "echo \"a {{ v }}\"",
    "echo x{{ v }}'y'", "true {{ v }}", "\n", "\n", "\n", " ; ", " | ", " && ", " || ", "if ", "\nthen ",
    "\nfi", "! ", "{ ", "\n}", " 2>&1", " >&2", " # ", " $x", "'", '"', "let {{ w }}", "[ {{ l }} ]",
    "declare {{ w }}=1", "test {{ l }}", "printf {{ l }}", "read {{ w }}", "x={{ v }}", "echo $({{ v }})",
    "export ", "echo ", " {{ v }}", " {{ w }} ", "-v ", "printf ", "%n ", "printf '%d' {{ w }}",
    "exit {{ w }}", "echo $((1)) {{ w }}", "[[ {{ w }} -eq 1 ]]", "cat <<E\n{{ v }}\nE\n", "eval {{ w }}",
    "\\", "f() { ", '[ -v "$HOLDFAST_VALUE_1" ]', 'test -v "$N"', "[ $N ]", '[ "$O" "$N" ]', '[ -n "$N" ]',
)  # fmt: skip
"""Parts of scripts of which many can be run."""
_SUBSCRIPT = "a[$(echo PWNED >&2)]"
_SCOPE = {"v": VALUE, "l": ["-v", _SUBSCRIPT], "w": _SUBSCRIPT}
_VARIABLE = re.compile(r"\$\{HOLDFAST_VALUE_[0-9]+\}")
_WRITES = re.compile(r">(?!&[12])")
"""A script that writes files is not run here: a value may be any path."""


def _checked(text: str) -> tuple[str, dict[str, str]]:
    script, env = safe_script(compile_template(text), _SCOPE)
    if "PWNED" in script:
        raise Wrong(f"the value is part of the script: {script!r}")
    names = {f"HOLDFAST_VALUE_{number}" for number in range(1, len(env) + 1)}
    if set(env) != names:
        raise Wrong(f"other variables: {env!r}")
    if not {found[2:-1] for found in _VARIABLE.findall(script)} <= names:
        raise Wrong(f"the script has other variables: {script!r}")
    return script, env


def _text(data: bytes, pieces: tuple[str, ...] = MORE_PIECES) -> str:
    choices, parts = Choices(data), []
    while not choices.is_over and len(parts) < 24:
        parts.append(choices.of(pieces))
    return "".join(parts)


def shell_words() -> Check:
    """Scripts of odd pieces: a value travels as a variable, in quotes, or is refused."""

    def check(data: bytes) -> str:
        _, env = _checked(_text(data))
        return f"{min(4, len(env))} values"

    return check


def shell_text() -> Check:
    """Any text as a script: refused, or with nothing of the value in it."""

    def check(data: bytes) -> str:
        _, env = _checked(data.decode("utf-8", "replace"))
        return f"{min(4, len(env))} values"

    return check


def shell_runs() -> Check:
    """Scripts run by every shell there is: nothing of a value is ever run."""
    shells = [shell for shell in ("dash", "bash", "sh") if shutil.which(shell)]
    folder = own_folder()

    def check(data: bytes) -> str:
        text = _text(data, RUN_PIECES)
        script, env = _checked(text)
        if not env or _WRITES.search(text):
            return "not run"
        for shell in shells[: 1 + len(data) % 2]:
            done = subprocess.run(
                [shutil.which(shell) or shell, "-c", script],
                env={"PATH": "", "O": "-v", "N": _SUBSCRIPT, **env},
                capture_output=True,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                timeout=60,
            )
            lines = (done.stdout + done.stderr).replace(VALUE.encode(), b"").split(b"\n")
            if b"PWNED" in lines:
                raise Wrong(f"{shell} ran the value: {script!r}")
        return f"run: {min(done.returncode, 3)}"

    return check


def script_text(rng: Random) -> bytes:
    """A script of pieces, as text."""
    return "".join(rng.choice(MORE_PIECES) for _ in range(rng.randrange(1, 14))).encode()


TARGETS = [
    Target("shell", shell_words, (HoldfastError,), make=random_choices, share=250, longest=40, fresh=0.5),
    Target(
        "shell-text",
        shell_text,
        (HoldfastError,),
        make=script_text,
        share=150,
        longest=400,
        words=tuple(piece.encode() for piece in MORE_PIECES),
    ),
    Target(
        "shell-runs",
        shell_runs,
        (HoldfastError,),
        make=random_choices,
        share=2,
        longest=16,
        fresh=0.5,
        memory=4096 << 20,
    ),
]
