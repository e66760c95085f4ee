"""What the command line prints: nothing in it steers a terminal, and secrets are not in it, however disguised."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
from urllib.parse import quote

from holdfast.cli.command_lines import command_line
from holdfast.cli.render import json_text
from holdfast.views.terminal import Gate, one_line
from holdfast.workflows.secrets import REDACTED, Scrubber, Secrets
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.target import Check, Target, Wrong

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_PIECES = (
    "a", " ", "\n", "\t", "\r", "\r\n", "\x1b", "\x1b[", "\x1b]0;", "\x07", "[31m", "m", ";", "0", "\x9b", "\x85",
    "\x00", "\x7f", "\u202e", "\u2066", "\u2028", "\u200f", "\ufeff", "\ud800", "\udc80", "\U000e0041",
    "\\", "'", '"', "é",
    "$", "\x1b[0m", "\\u001b",
)  # fmt: skip
_ANSI = re.compile(r"\$'((?:[^'\\]|\\.)*)'")


def _text(choices: Choices) -> str:
    return "".join(choices.of(_PIECES) for _ in range(choices.byte() % 20))


def _units(text: str) -> bytes:
    """A text as JSON sees it: two halves of a character that follow each other are that character."""
    return text.encode("utf-16-le", "surrogatepass")


def printed() -> Check:
    """Odd texts through the gate, as a line, as JSON, and as a command to paste."""

    def check(data: bytes) -> str:
        text = _text(Choices(data))
        stream = io.StringIO()
        Gate(stream).write(text)
        line, shown = one_line(text), command_line("answer", "r", f"n{text}", store="sqlite:///x.db")
        for told in (stream.getvalue(), line, shown, json_text({"k": text})):
            if found := _OBEYED.search(told):
                raise Wrong(f"{found[0]!r} is printed of {text!r}")
        if "\n" in line or "\n" in shown:
            raise Wrong(f"{text!r} has several lines")
        if _units(json.loads(json_text(text))) != _units(text):
            raise Wrong(f"{text!r} is other JSON")
        if not _ANSI.search(shown) and shlex.split(shown)[-3] != f"n{text}":
            raise Wrong(f"{text!r} would be pasted as {shown!r}")
        return "quoted" if _ANSI.search(shown) else "plain"

    return check


def hidden() -> Check:
    """A secret of odd characters, encoded and wrapped at odd places, is found."""

    def check(data: bytes) -> str:
        choices = Choices(data)
        secret = "S3" + re.sub("[\ud800-\udfff\x00]", "x", _text(choices)).strip() + "cret!"
        raw = b"u" * (choices.byte() % 4) + secret.encode()
        encoded = choices.of(
            (secret, base64.b64encode(raw).decode(), raw.hex(), json.dumps(secret), quote(secret, '="$;'))
        )
        width, gap = 1 + choices.byte() % 9, choices.of(("\n", "\r\n", "\n  ", "\\n"))
        if encoded in (secret, json.dumps(secret), quote(secret, '="$;')):
            width = len(encoded)
        wrapped = gap.join(encoded[place : place + width] for place in range(0, len(encoded), width))
        secrets = Secrets({"S": secret})
        assert secrets["S"]
        told = Scrubber(secrets).scrub(f"<{wrapped}>")
        if REDACTED not in told:
            raise Wrong(f"{secret!r} is not found in {wrapped!r}")
        return f"{len(told) // 4}"

    return check


TARGETS = [
    Target("printed", printed, (), make=random_choices, share=100, longest=40, fresh=0.6),
    Target("hidden", hidden, (), make=random_choices, share=40, longest=40, fresh=0.6),
]
