"""Secrets are read by name, never listed, and found again in every disguise."""

from __future__ import annotations

import base64
import copy
import csv
import io
import json
import logging
import os
import pickle
import re
import shlex
import shutil
import subprocess
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.events import Event
from holdfast.journal.journal import Journal
from holdfast.state.ops import freeze
from holdfast.stores import open_store
from holdfast.views.timeline import timeline
from holdfast.workflows.language.templates import TemplateError, compile_expression
from holdfast.workflows.secrets import REDACTED, Scrubber, SecretError, SecretMissing, Secrets
from tests.workflows.workshop import Workshop

KEY = "s3cr3t/K&y'\"+\\ü x"


def scrubber(*values: str) -> Scrubber:
    """A scrubber that knows these secrets."""
    secrets = Secrets({f"S{number}": value for number, value in enumerate(values)})
    for number in range(len(values)):
        secrets[f"S{number}"]
    return Scrubber(secrets)


def test_a_secret_is_looked_for_under_three_names_in_order() -> None:
    env = {
        "TOKEN": "plain-value",
        "WORKFLOW_SECRET_TOKEN": "workflow-value",
        "HOLDFAST_SECRET_TOKEN": "own-value",
    }
    found = []
    for variable in ("HOLDFAST_SECRET_TOKEN", "WORKFLOW_SECRET_TOKEN", "TOKEN"):
        found.append(Secrets(env)["TOKEN"])
        del env[variable]

    assert found == ["own-value", "workflow-value", "plain-value"]
    with pytest.raises(
        SecretMissing, match="set HOLDFAST_SECRET_TOKEN \\(or WORKFLOW_SECRET_TOKEN or TOKEN\\)"
    ):
        Secrets(env)["TOKEN"]


@pytest.mark.parametrize("value", ["", "short", "  abc  ", "\n\n\n\n\n\n\n"])
def test_a_secret_too_short_to_be_hidden_is_refused(value: str) -> None:
    with pytest.raises(SecretError, match="fewer than 6 characters") as caught:
        Secrets({"TOKEN": value})["TOKEN"]

    assert isinstance(caught.value, HoldfastError)
    assert "short" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "A-B", "A=B", 3, None])
def test_a_name_that_no_variable_has_is_refused(name: Any) -> None:
    with pytest.raises(SecretError, match="letters, digits and _"):
        Secrets({"A-B": "long-enough"})[name]


def test_secrets_show_nothing_of_the_environment() -> None:
    secrets = Secrets({"HOLDFAST_SECRET_KEY": "long-enough", "PATH_TO_IT": "also-long"})
    secrets["KEY"]

    assert [*secrets, *secrets.items(), *secrets.values()] == []
    assert len(secrets) == 0
    assert f"{secrets} {secrets!r}" == "Secrets(***) Secrets(***)"
    assert not hasattr(secrets, "__dict__")
    assert [name in secrets for name in ("KEY", "NOPE")] == [True, False]
    for store in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(SecretError, match="never copied or stored"):
            store(secrets)


def test_expressions_read_secrets_and_their_errors_do_not_cut_them() -> None:
    secrets = Secrets({"LONG": "x" * 30 + "0123456789" * 5, "KEY": "abcdefgh"})
    scope = {"secrets": secrets}

    assert compile_expression("secrets.KEY == 'abcdefgh'").value(scope) is True
    assert compile_expression("default(secrets.NOPE, 'none')").value(scope) == "none"
    for text in (
        "secrets.LONG + 1",
        "{}[secrets.LONG]",
        "secrets.LONG.x",
        "{secrets.LONG: 1}.x",
        "int(secrets.LONG)",
    ):
        with pytest.raises(TemplateError) as caught:
            compile_expression(text).value(scope)
        assert "xxxx" not in Scrubber(secrets).scrub(str(caught.value))


def small(quoted: str) -> str:
    """A quoted text with lower case in its escapes, as some programs write it."""
    return re.sub("%..", lambda found: found[0].lower(), quoted)


def wrapped(text: str, width: int, line_break: str) -> str:
    return line_break.join(text[place : place + width] for place in range(0, len(text), width))


def as_csv(secret: str) -> str:
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL).writerow(["a", secret])
    return file.getvalue().strip()


DISGUISES: dict[str, Callable[[str], str]] = {
    "itself": lambda secret: secret,
    "json": json.dumps,
    "json, unicode kept": lambda secret: json.dumps(secret, ensure_ascii=False),
    "json in json": lambda secret: json.dumps(json.dumps(secret)),
    "json in json, unicode kept": lambda secret: json.dumps(json.dumps({"k": secret}, ensure_ascii=False)),
    "json with \\/": lambda secret: json.dumps(secret).replace("/", "\\/"),
    "quote": urllib.parse.quote,
    "quote everything": lambda secret: urllib.parse.quote(secret, safe=""),
    "quote plus": urllib.parse.quote_plus,
    "quote in small letters": lambda secret: small(urllib.parse.quote(secret, safe="")),
    "query": lambda secret: urllib.parse.urlencode({"key": secret}),
    "repr": repr,
    "repr of bytes": lambda secret: repr(secret.encode()),
    "shell": shlex.quote,
    "shell, escaped quote": lambda secret: "'" + secret.replace("'", "'\\''") + "'",
    "hex": lambda secret: secret.encode().hex(),
    "HEX": lambda secret: secret.encode().hex().upper(),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64 after one": lambda secret: base64.b64encode(b":" + secret.encode()).decode(),
    "base64 after two": lambda secret: base64.b64encode(b"u:" + secret.encode() + b"!").decode(),
    "base64 in the middle": lambda secret: base64.b64encode(b"user:" + secret.encode() + b":more").decode(),
    "urlsafe base64": lambda secret: base64.urlsafe_b64encode(b"???" + secret.encode()).decode().rstrip("="),
    "base64 in short lines": lambda secret: wrapped(base64.b64encode(b"user:" + secret.encode()).decode(), 7, "\n"),
    "base64 in lines of mails": lambda secret: base64.encodebytes(b"x" * 60 + secret.encode()).decode(),
    "base64 in indented lines": lambda secret: wrapped(base64.b64encode(secret.encode()).decode(), 5, "\r\n    "),
    "lines of base64 in json": lambda secret: json.dumps(wrapped(base64.b64encode(secret.encode()).decode(), 5, "\n")),
    "hex in lines": lambda secret: wrapped(secret.encode().hex(), 6, "\n"),
    "hex in pairs": lambda secret: secret.encode().hex(" "),
    "base32": lambda secret: base64.b32encode(secret.encode()).decode(),
    "sql": lambda secret: "'" + secret.replace("'", "''") + "'",
    "sql with backslashes": lambda secret: "'" + secret.replace("\\", "\\\\").replace("'", "\\'") + "'",
    "csv": as_csv,
    "folded": lambda secret: wrapped(secret, 5, "\n"),
    "urlsafe base64 after one": lambda secret: base64.urlsafe_b64encode(b"?" + secret.encode() + b"??").decode(),
}  # fmt: skip


def leaks(secret: str, scrubbed: str) -> bool:
    """Return whether a scrubbed text still contains a large part of the secret."""
    encoded = [base64.b64encode(bytes(before) + secret.encode()).decode() for before in range(3)]
    sources = [
        secret,
        secret.encode().hex(),
        *encoded,
        *(text.replace("+", "-").replace("/", "_") for text in encoded),
    ]
    parts = [source[begin : begin + 6] for source in sources for begin in range(4, len(source) - 6)]
    return any(part in scrubbed for part in parts)


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize(
    "secret", [KEY, "simple-token-123", "ghp_" + "aB3" * 12, "????>>>>~~~~", "line one\nline two"]
)
def test_a_secret_is_found_in_every_disguise(disguise: str, secret: str) -> None:
    shown = f"before {DISGUISES[disguise](secret)} after"

    scrubbed = scrubber(secret).scrub(shown)

    assert REDACTED in scrubbed
    assert scrubbed.startswith("before ") and scrubbed.endswith(" after")
    assert not leaks(secret, scrubbed)


@pytest.mark.parametrize("shell", [["bash", "-c", 'printf %q "$1"', "-"], ["/usr/bin/printf", "%q"]])
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@pytest.mark.parametrize(
    "secret",
    [
        "pass word",
        "a'b\"c$d`e",
        "".join(map(chr, range(33, 127))),
        "#start~tilde:~x=~y",
        "~home,{a,b}",
        "two\nlines\tand\x1bmore\x01",
        "gehéim wörter",
        "é'ü\x01\n'x",
    ],
)
def test_a_secret_is_found_as_real_tools_quote_it(shell: list[str], locale: str, secret: str) -> None:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": locale}
    done = subprocess.run([*shell, secret], capture_output=True, env=environment, check=True)
    quoted = done.stdout.decode("utf-8", "surrogateescape")

    scrubbed = scrubber(secret).scrub(f"before {quoted} after")

    assert REDACTED in scrubbed and not leaks(secret, scrubbed)
    assert len(scrubbed) <= len("before  after") + 12, scrubbed


@pytest.mark.parametrize("secret", ['pass=word"1', "a&b/c:déf1", "x%2Fy/z w%", 's3cr3t/Tok+en"x'])
@pytest.mark.parametrize("safe", ["", "/", "/=+&:", "/=+&:%", "/=+&:% "])
@pytest.mark.parametrize("plus", [False, True])
def test_a_secret_is_found_in_a_url_whatever_is_quoted(secret: str, safe: str, plus: bool) -> None:
    quoted = urllib.parse.quote(secret, safe=safe)
    quoted = quoted.replace("%20", "+").replace(" ", "+") if plus else quoted

    for text in (quoted, small(quoted), json.dumps(quoted)[1:-1], quoted.replace("&", "&amp;")):
        assert scrubber(secret).scrub(f"/echo?k={text}#end") == "/echo?k=***#end"


@pytest.mark.parametrize(
    "secret", ['pass=word"1', "a secret of many characters, ü, that fills several rows of it"]
)
@pytest.mark.parametrize("before", ["", "token: "])
@pytest.mark.parametrize(
    "tool", ["hexdump -C", "xxd", "xxd -u", "xxd -c 8", "xxd -p", "od -t x1", "od -A n -t x1"]
)
def test_a_secret_is_found_as_real_tools_dump_it(tool: str, before: str, secret: str) -> None:
    command = tool.split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} here")
    raw = f"{before}{secret}\nthe end".encode()
    dump = subprocess.run(command, input=raw, capture_output=True, check=True).stdout.decode()

    clean = scrubber(secret).scrub(dump)

    told = re.sub("[^0-9a-f]", "", clean.lower())
    assert REDACTED in clean
    assert secret[:4].encode().hex() not in told and secret[-6:].encode().hex() not in told
    assert secret[:4] not in clean and secret[-5:] not in clean


def test_long_texts_of_blanks_and_breaks_are_searched_in_no_time() -> None:
    """Twice as much takes twice as long: this would take days otherwise."""
    hider = scrubber("simple-token-123", "x" * 100)

    for text in (" " * 500_000 + "\n", "\\" * 500_000 + "n", " \n" * 250_000, "x" * 99 + "\n \n" * 100_000):
        assert hider.scrub(text) == text


secret_texts = st.text(st.characters(codec="utf-8", min_codepoint=33), min_size=8, max_size=40).filter(
    lambda text: len(text.strip()) >= 8 and "*" not in text
)


@settings(deadline=None)
@given(secret_texts, st.sampled_from(sorted(DISGUISES)), st.text(max_size=10), st.text(max_size=10))
def test_any_secret_is_found_in_any_text(secret: str, disguise: str, before: str, after: str) -> None:
    disguised = DISGUISES[disguise](secret)

    scrubbed = scrubber(secret).scrub(before + disguised + after)

    assert REDACTED in scrubbed
    assert secret not in scrubbed
    assert disguised not in scrubbed


@given(st.binary(max_size=8), secret_texts, st.binary(max_size=8))
@example(b"ab", "0000000000\x80\x80\x85", b"")
def test_any_alignment_of_base64_is_found(before: bytes, secret: str, after: bytes) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(before + secret.encode() + after).decode()
        scrubbed = scrubber(secret).scrub(f"<{whole}>")
        # What is left on either side is what stood beside the secret, and at most a few of its bits.
        left, right = scrubbed.strip("<>=").split(REDACTED)[0], scrubbed.strip("<>=").split(REDACTED)[-1]
        assert len(left) <= (len(before) * 8 + 5) // 6
        assert len(right) <= (len(after) * 8 + 5) // 6


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        ("no match", "no match"),
        (b"x hunter22 \xff", b"x *** \xff"),
        (bytearray(b"hunter22"), bytearray(b"***")),
        (["a", "hunter22"], ["a", "***"]),
        (("hunter22", 1), ("***", 1)),
        ({"hunter22", 1}, {"***", 1}),
        (frozenset({"hunter22"}), frozenset({"***"})),
        ({"hunter22": {"k": ["x-hunter22-y"]}}, {"***": {"k": ["x-***-y"]}}),
        ({"hunter22": 1, "12345678": 2, "***": 3}, {"***": 1, "******": 2}),
        ({("hunter22", 1): None}, {("***", 1): None}),
        (12345678, "***"),
        (1234567, 1234567),
        (True, True),
        ("hunter2212345678", "***"),
        ("hunter22hunter22", "***"),
    ],
)
def test_plain_data_is_scrubbed_throughout(value: Any, clean: Any) -> None:
    scrubbed = scrubber("hunter22", "12345678").scrub(value)

    if isinstance(value, dict) and "***" in value:
        assert sorted(scrubbed.values()) == [1, 2, 3]
    elif isinstance(value, str) and value.startswith("hunter22"):
        assert scrubbed.strip("*") == ""
    else:
        assert (scrubbed, type(scrubbed)) == (clean, type(clean))


def test_secrets_that_overlap_leave_nothing_behind() -> None:
    scrub = scrubber("foobar123", "123456", "abcdabcd").scrub

    assert scrub("<foobar123456>") == "<***>"
    assert scrub("<abcdabcdabcd>") == "<***>"
    assert scrubber("secret", "secret-and-longer").scrub("a secret-and-longer b") == "a *** b"


def test_what_has_no_secret_comes_back_as_the_same_object() -> None:
    value = {"a": [1, "text", ("x", b"y"), {"z"}], "b": None}
    frozen, _ = freeze({"a": ["hunter22", {"k": 1}]})

    assert scrubber("hunter22").scrub(value) is value
    assert Scrubber().scrub(value) is value
    assert Scrubber(Secrets({"A": "hunter22"})).scrub("hunter22") == "hunter22", "it was never read"
    assert scrubber("hunter22").scrub(frozen) == {"a": ["***", {"k": 1}]}
    assert scrubber("hunter22").scrub(frozen)["a"][1] is frozen["a"][1]


def test_a_secret_that_is_read_later_is_known_from_then_on() -> None:
    secrets = Secrets({"A": "first-one", "B": "second-one"})
    scrub = Scrubber(secrets).scrub
    secrets["A"]
    assert scrub("first-one second-one") == "*** second-one"

    secrets["B"]

    assert scrub("first-one second-one") == "*** ***"


def test_each_line_of_a_long_secret_is_one() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\r\n  kqhkiG9w0BAQ\nend\n-----END KEY-----\n"
    scrub = scrubber(key).scrub

    assert scrub(key) == "***"
    assert scrub(key.strip()) == "***"
    assert scrub("log: MIIEvQIBADANBg") == "log: ***"
    assert scrub("log: kqhkiG9w0BAQ, end") == "log: ***, end"


def test_shared_and_endless_structures_are_walked_once() -> None:
    value: Any = ["hunter22"]
    for _ in range(60):
        value = [value, value]
    endless: list[Any] = ["hunter22"]
    endless.append(endless)
    deep: Any = "hunter22"
    for _ in range(100_000):
        deep = [deep]

    scrubbed = scrubber("hunter22").scrub(value)
    while isinstance(scrubbed, list):
        assert scrubbed[0] is scrubbed[-1]
        scrubbed = scrubbed[0]

    assert scrubbed == "***"
    assert scrubber("hunter22").scrub(endless) == ["***", "***"]
    assert scrubber("hunter22").scrub(deep) == "***"


def test_an_exception_is_told_without_its_secrets() -> None:
    try:
        try:
            raise KeyError("hunter22")
        except KeyError as error:
            raise ValueError("cannot use 'hunter22'") from error
    except ValueError as error:
        told = scrubber("hunter22").scrub_exception(error)

    assert told.endswith("ValueError: cannot use '***'\n")
    assert "KeyError: '***'" in told
    assert "Traceback (most recent call last)" in told


def test_log_records_are_scrubbed_with_their_arguments_and_tracebacks() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s %(token)s"))
    handler.addFilter(scrubber("hunter22"))
    logger = logging.Logger("test")
    logger.addHandler(handler)

    logger.info("using %s for %d", "hunter22", 3, extra={"token": {"a": "hunter22"}})
    logger.info("broken %d %s", "hunter22", extra={"token": ""})
    try:
        raise ValueError("hunter22")
    except ValueError:
        logger.exception("failed", extra={"token": "-"}, stack_info=True)

    assert stream.getvalue().startswith(
        "using *** for 3 {'a': '***'}\nbroken %d %s ('***',) \nfailed -\nTraceback"
    )
    assert "ValueError: ***" in stream.getvalue()
    assert '"hunter22"' not in stream.getvalue().replace('scrubber("hunter22")', "")


plain = st.recursive(
    st.text(max_size=8) | st.integers() | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(plain)
def test_data_without_secrets_is_never_changed(value: Any) -> None:
    assert scrubber("a secret that is nowhere in there").scrub(value) is value


def test_a_secret_that_is_not_set_hints_at_one_that_is() -> None:
    secrets = Secrets({"HOLDFAST_SECRET_API_KEY": "correct-horse", "PATH": "/bin"})

    with pytest.raises(SecretMissing, match=r"set HOLDFAST_SECRET_API_KY .*; did you mean 'API_KEY'\?$"):
        secrets["API_KY"]


def test_the_journal_names_the_secrets_that_steps_used_and_never_their_values(shop: Workshop) -> None:
    """R2.7: the audit log: which step used which secrets, when, at each attempt; stored before they are used."""
    shop.env |= {"WORKFLOW_SECRET_TOKEN": "opensesame", "HOLDFAST_SECRET_OTHER": "swordfish"}
    heard: list[Event] = []
    text = """
    steps:
      - name: fails
        retry: {attempts: 2, delay: 1ms}
        on_error: continue
        shell: {run: 'test "$T" = nothing', env: {T: "{{ secrets.TOKEN }}"}}
      - {name: python, python: "steps.py:say", with: {word: "{{ secrets.OTHER }} {{ secrets['TOKEN'] }}"}}
      - {name: alone, python: "json:dumps", with: {obj: "{{ secrets.TOKEN }}"}}
      - {name: plain, set: {x: 1}}
    """
    shop.run(text, observer=heard.append)
    journal = Journal(open_store(shop.url))
    told = [moment for moment in timeline(journal, "r") if moment.type == "secrets.use"]
    journal.store.close()

    assert [(each.step, each.data["names"]) for each in told] == [
        ("fails#1", ["TOKEN"]),
        ("fails#1", ["TOKEN"]),
        ("python#1", ["OTHER", "TOKEN"]),
        ("alone#1", ["TOKEN"]),
    ]
    assert all(each.at for each in told) and told[-2].text == "python#1 uses secrets: OTHER, TOKEN"
    assert [event.data["attempt"] for event in heard if event.type == "secrets.use"] == [1, 2, 1, 1]
    raw = (shop.folder / "runs.db").read_bytes() + repr(heard).encode()
    assert b"opensesame" not in raw and b"swordfish" not in raw
