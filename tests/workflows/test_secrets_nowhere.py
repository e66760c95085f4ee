"""Secrets reach the steps that use them, and nothing else: no store, no event, no log, no error."""

from __future__ import annotations

import base64
import functools
import json
import logging
import sqlite3
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.engine.retention import janitor
from holdfast.errors import ExecutionError
from holdfast.events import Event
from holdfast.values import RunStatus
from holdfast.workflows.reading.problems import WorkflowInvalid
from tests.agents.llm_server import LlmServer, echo, failing, reply, server_error, unauthorized
from tests.workflows.web_server import Visit, WebServer
from tests.workflows.workshop import Workshop

SECRETS = [
    "hunter42",
    'pass=word"1',
    "sk-Aa0/+=&?ü 'quoted\" $HOME \\ <tag>",
    "first line of it\nsecond line of it",
]
FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda secret: secret,
    "json": lambda secret: json.dumps(secret)[1:-1],
    "url": urllib.parse.quote,
    "url with its signs": lambda secret: urllib.parse.quote(secret, safe="/=+&:"),
    "plus": urllib.parse.quote_plus,
    "base64": lambda secret: base64.b64encode(secret.encode()).decode().rstrip("="),
    "hex": lambda secret: secret.encode().hex(),
    "repr": lambda secret: repr(secret)[1:-1],
}


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(params=SECRETS, ids=["short", "sign", "strange", "lines"])
def secret(request: pytest.FixtureRequest, shop: Workshop) -> str:
    value: str = request.param
    shop.env["HOLDFAST_SECRET_TOKEN"] = value
    return value


class Witness:
    """Gathers everything that a run lets be seen, and looks for a secret in it."""

    def __init__(self, shop: Workshop, secret: str, caplog: pytest.LogCaptureFixture) -> None:
        self.shop, self.secret, self.log = shop, secret, caplog
        self.seen: dict[str, str | bytes] = {}
        self.events: list[Event] = []
        self.failure = ""
        caplog.set_level(logging.DEBUG)

    def run(self, text: str, inputs: dict[str, Any] | None = None, resume: bool = False) -> Any:
        """Run or resume; `None` if it failed. Whatever was left anywhere is looked at."""
        options: dict[str, Any] = {"observer": self.events.append}
        outcome = None
        flow = self.shop.load(text)
        app = flow.open(self.shop.url, durability="full", **options)
        try:
            if resume:
                outcome = app.resume("r", config=flow.config())
            else:
                begun = flow.begin(flow.read_inputs(inputs or {}))
                outcome = app.invoke(begun, run_id="r", config=flow.config())
        except ExecutionError as error:
            self.failure = str(error)
            self.seen["error"] = "".join(traceback.format_exception(error))
            self.seen["cause"] = repr(error.cause) + repr(vars(error.cause)) + repr(error.state)
            self.seen["context"] = repr(getattr(error.cause, "__context__", None))
        self._look(app)
        app.store.close()
        return outcome

    def _look(self, app: Any) -> None:
        assert (
            janitor.wait()
        )  # Closing a file ends all locks of this process on it, those of the pruning thread too.
        for path in self.shop.folder.glob("runs.db*"):
            self.seen[path.name] = path.read_bytes()
        connection = sqlite3.connect(f"file:{self.shop.folder / 'runs.db'}?mode=ro", uri=True)
        rows = [
            row
            for table in ("runs", "entries", "snapshots")
            for row in connection.execute(f"select * from {table}")
        ]
        connection.close()
        self.seen["rows"] = repr(rows)
        journal, codec = app._settings.journal, app._settings.codec
        _, history = journal.history(journal.info("r"), codec)
        self.seen["records"] = repr([[_shown(record) for record in records] for _, records in history])
        self.seen["state"] = json.dumps(app.get_state("r").to_dict(), default=repr, ensure_ascii=False)
        self.seen["events"] = repr([(event.type, event.node, event.data) for event in self.events])
        self.seen["log"] = self.log.text + repr([vars(record) for record in self.log.records])

    def found(self) -> list[str]:
        """Where the secret, or a line of it, or another form of it, was seen."""
        parts = {self.secret, *self.secret.splitlines()}
        found = []
        for where, seen in self.seen.items():
            for name, form in FORMS.items():
                for part in parts:
                    whole = seen if isinstance(seen, bytes) else seen.encode("utf-8", "replace")
                    if form(part).encode() in whole:
                        found.append(f"{name} in {where}")
        return found


def _shown(record: Any) -> str:
    parts = [repr(record)]
    for op in [
        *getattr(record, "ops", ()),
        *(op for target in getattr(record, "next", ()) for op in target.item),
    ]:
        parts.append(op.raw.decode("utf-8", "replace"))
    return " ".join(
        parts + [value.decode("utf-8", "replace") for value in record if isinstance(value, bytes)]
    )


@pytest.fixture
def witness(shop: Workshop, secret: str, caplog: pytest.LogCaptureFixture) -> Witness:
    return Witness(shop, secret, caplog)


def test_the_witness_would_see_it(shop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    """What is no secret is found everywhere, so that nothing found means something."""
    witness = Witness(shop, "notsecret", caplog)
    shop.write("def f(w, ctx):\n    ctx.emit(w)\n    ctx.log.info(w)\n    raise ValueError(w)\n", "own.py")
    witness.run("steps: [{name: x, python: 'own.py:f', with: {w: notsecret}}]")

    places = {where.partition(" in ")[2] for where in witness.found()}
    assert {"records", "error", "cause", "events", "log"} <= places
    assert places & {"runs.db", "runs.db-wal"}


SHELL = """
    steps:
      - name: x
        shell:
          run: |
            printf '%s\\n' {{ secrets.TOKEN }}; printf '%s' "$T"; cat
            printf '%s\\n' "{{ secrets.TOKEN }}" >&2; printf '%s' "$T" | base64 -w0
          env: {T: "{{ secrets.TOKEN }}"}
          stdin: {json: "{{ secrets.TOKEN }}"}
      - {name: y, set: {copy: "{{ steps.x.output }}{{ steps.x.stderr }}"}}
    output: "{{ steps.y.output.copy }}"
    """


def test_a_command_gets_it_and_nobody_else(witness: Witness) -> None:
    outcome = witness.run(SHELL)

    assert witness.found() == []
    assert outcome.state["x"]["output"].count("***") >= 4 and "***" in outcome.state["x"]["stderr"]


def test_a_command_that_fails_with_it(witness: Witness) -> None:
    witness.run(SHELL.replace("printf '%s' \"$T\" | base64 -w0", "exit 3"))

    assert witness.found() == [] and "code 3" in witness.failure and "***" in witness.failure


def test_a_command_whose_output_is_no_json(witness: Witness) -> None:
    witness.run("steps: [{name: x, shell: {run: 'echo {{ secrets.TOKEN }}', output: json}}]")

    assert "was to print JSON" in witness.failure and witness.found() == []


@pytest.mark.parametrize("fill", range(189, 200, 2))
def test_output_that_is_no_json_is_not_cut_in_the_middle_of_it(shop: Workshop, fill: int) -> None:
    secret = shop.env["HOLDFAST_SECRET_TOKEN"] = "ghijklmnopqr"
    script = f"printf %s {'x' * fill}; echo {{{{ secrets.TOKEN }}}}"
    told = shop.error(f"steps: [{{name: x, shell: {{run: '{script}', output: json}}}}]")

    assert not any(secret[:length] in told for length in range(3, len(secret) + 1))


@pytest.mark.parametrize("cut", range(-3, 12, 3))
def test_what_is_cut_short_is_not_cut_in_the_middle_of_it(
    shop: Workshop, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    """Half of a secret could not be recognised any more."""
    secret = shop.env["HOLDFAST_SECRET_TOKEN"] = "ghijklmnopqr"
    witness = Witness(shop, secret, caplog)
    fill = 2000 - cut
    witness.run(
        'steps: [{name: x, shell: "printf %s {{ secrets.TOKEN }} >&2; head -c '
        f"{fill - 1} /dev/zero | tr '\\\\0' x >&2; echo >&2; exit 1\"}}]"
    )

    assert witness.found() == []
    assert not any(
        piece in str(seen) for seen in witness.seen.values() for piece in (secret[5:], secret[6:], secret[:7])
    )


@pytest.mark.parametrize("offset", [0, 4, 7])
def test_a_long_standard_error_is_not_cut_in_the_middle_of_it(
    shop: Workshop, caplog: pytest.LogCaptureFixture, offset: int
) -> None:
    secret = shop.env["HOLDFAST_SECRET_TOKEN"] = "ghijklmnopqr"
    witness = Witness(shop, secret, caplog)
    fill = 64 * 1024 - offset
    outcome = witness.run(
        'steps: [{name: x, shell: "printf %s {{ secrets.TOKEN }} >&2; '
        f"head -c {fill} /dev/zero | tr '\\\\0' x >&2\"}}]"
    )

    assert witness.found() == []
    assert set(outcome.state["x"]["stderr"]) <= set("x*")


PYTHON = """
def give(token):
    return {"token": token, token: [token.encode(), (token,)], "upper": f"<{token}>"}


def hide(token):
    import collections, pathlib
    return [pathlib.PurePosixPath("/a") / token.replace("/", "_"), collections.deque([token])]


def fail(token):
    try:
        raise KeyError(token)
    except KeyError as error:
        raise ValueError(f"wrong: {token}") from error


def talk(token, ctx):
    ctx.emit(token, extra=[token])
    ctx.log.warning("token %s", token)
    ctx.log.error(token)
    try:
        raise ValueError(token)
    except ValueError as error:
        ctx.log.exception("it broke", exc_info=error)
        ctx.log.exception("it broke")
    ctx.once("remembered", lambda: token)
    ctx.once(f"under {token}", lambda: 1)
    return "done"


def ask(token, ctx):
    return ctx.ask(f"is {token} right?", name="right", choices=["yes", token])


async def later(token, ctx):
    await ctx.once("remembered", remember, token)
    raise RuntimeError(token)


async def remember(token):
    return token
"""


@pytest.mark.parametrize("function", ["give", "fail", "talk", "ask", "later"])
def test_a_function_gets_it_and_nobody_else(witness: Witness, shop: Workshop, function: str) -> None:
    shop.write(PYTHON, "own.py")
    outcome = witness.run(
        f"steps: [{{name: x, python: 'own.py:{function}', with: {{token: '{{{{ secrets.TOKEN }}}}'}}}}]"
    )

    assert witness.found() == []
    if function == "give":
        assert outcome.state["x"]["output"] == {"token": "***", "***": [b"***", ("***",)], "upper": "<***>"}
    if function in ("fail", "later"):
        assert "***" in witness.failure
    if function == "ask":
        assert outcome.status == RunStatus.PAUSED and outcome.pauses[0].prompt == "is *** right?"


def test_a_function_that_hides_it_in_other_types(shop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    shop.env["HOLDFAST_SECRET_TOKEN"] = "hunter42"
    witness = Witness(shop, "hunter42", caplog)
    shop.write(PYTHON, "own.py")
    outcome = witness.run("steps: [{name: x, python: 'own.py:hide', with: {token: '{{ secrets.TOKEN }}'}}]")

    assert witness.found() == []
    assert all("***" in text for text in outcome.state["x"]["output"])


def test_failures_that_are_passed_over(witness: Witness, shop: Workshop) -> None:
    shop.write(PYTHON, "own.py")
    outcome = witness.run(
        """
        steps:
          - {name: x, python: "own.py:fail", with: {token: "{{ secrets.TOKEN }}"}, on_error: continue}
          - {name: y, set: {error: "{{ steps.x.error }}"}}
        """
    )

    assert witness.found() == [] and "***" in outcome.state["y"]["output"]["error"]


def test_retries_tell_nothing_either(witness: Witness, shop: Workshop) -> None:
    shop.write(PYTHON, "own.py")
    witness.run(
        """
        steps:
          - name: x
            python: own.py:fail
            with: {token: "{{ secrets.TOKEN }}"}
            retry: {attempts: 3, delay: 1ms}
        """
    )

    assert witness.found() == []


def test_items_of_a_step_that_uses_it(witness: Witness, shop: Workshop) -> None:
    shop.write(PYTHON, "own.py")
    witness.run(
        """
        steps:
          - name: x
            for_each: {in: [give, fail], key: item, on_error: continue}
            shell: {run: 'echo {{ item }} {{ secrets.TOKEN }}; [ "$I" = give ]', env: {I: "{{ item }}"}}
          - {name: y, for_each: {in: "{{ steps.x.outputs }}"}, set: {copy: "{{ item }}"}}
        output: {all: "{{ steps.x }}", copies: "{{ steps.y.outputs }}"}
        """
    )

    assert witness.found() == []


def test_groups_and_workflows_inside(witness: Witness, shop: Workshop) -> None:
    shop.write(
        "workflow: {name: i}\nsteps: [{name: o, shell: 'echo {{ secrets.TOKEN }}; exit 1'}]", "inner.yaml"
    )
    witness.run(
        """
        steps:
          - name: g
            parallel:
              on_error: continue
              steps:
                - {name: a, shell: "echo {{ secrets.TOKEN }}"}
                - {name: w, workflow: inner.yaml}
        output: "{{ steps.g }}"
        """
    )

    assert witness.found() == []


def test_a_checkpoint_file(witness: Witness, shop: Workshop) -> None:
    outcome = witness.run(
        "steps: [{name: a, shell: 'echo {{ secrets.TOKEN }}'}, {name: b, checkpoint: {save: s.pkl}}]"
    )
    witness.seen["file"] = (shop.folder / "s.pkl").read_bytes()

    assert outcome.status == RunStatus.COMPLETED and witness.found() == []


def test_it_is_recognised_before_the_step_that_uses_it_and_after_a_resume(
    witness: Witness, shop: Workshop
) -> None:
    (shop.folder / "leak").write_text(witness.secret)
    text = """
        steps:
          - {name: before, shell: cat leak}
          - {name: x, shell: "echo {{ secrets.TOKEN }}; [ -e fixed ]"}
          - {name: after, shell: cat leak}
        """
    assert witness.run(text) is None
    shop.fix()
    outcome = witness.run(text, resume=True)

    assert outcome.status == RunStatus.COMPLETED and witness.found() == []
    assert "***" in outcome.state["before"]["output"] and "***" in outcome.state["after"]["output"]


@pytest.mark.parametrize(
    "step",
    [
        "{name: x, for_each: {in: '{{ [secrets.TOKEN] }}'}, set: {}}",
        "{name: x, for_each: {in: [1], key: secrets.TOKEN}, set: {}}",
        "{name: x, set: {a: '{{ secrets.TOKEN }}'}}",
        "{name: x, when: secrets.TOKEN, set: {}}",
        "{name: x, ask: '{{ secrets.TOKEN }}?'}",
        "{name: x, set: {}, routes: [{to: $end, when: secrets.TOKEN}, {to: $end}]}",
        "{name: x, workflow: flow2.yaml, with: {a: '{{ secrets.TOKEN }}'}}",
    ],
)
def test_places_where_it_would_be_kept_are_refused(shop: Workshop, step: str) -> None:
    shop.write("workflow: {name: t, inputs: {a: {}}}\nsteps: [{name: y, set: {}}]", "flow2.yaml")

    with pytest.raises(WorkflowInvalid, match="'secrets' cannot be used"):
        shop.load(f"steps: [{step}]")


# HTTP.


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as running:
        yield running


def mirror(visit: Visit, status: int = 200) -> None:
    """Repeats everything that it was sent."""
    request = visit.received
    parts = [request.path, *request.headers.values(), request.body.decode()]
    visit.answer(
        {"parts": parts, "plain": urllib.parse.unquote_plus(request.path)},
        status,
        X_Echo=request.headers.get("x-token", ""),
    )


HTTP = """
    workflow:
      name: test
      inputs: {url: {}}
    steps:
      - name: x
        http:
          url: "{{ inputs.url }}/path/{{ secrets.TOKEN }}?a={{ secrets.TOKEN }}"
          headers: {X-Token: "{{ secrets.TOKEN | replace('\\n', ' ') }}", Authorization: "Bearer {{ secrets.PLAIN }}"}
          query: {token: "{{ secrets.TOKEN }}"}
          json: {token: "{{ secrets.TOKEN }}", list: ["{{ secrets.TOKEN }}"]}
        retry: {attempts: 2, delay: 1ms}
    """


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_request_carries_it_and_its_echo_is_scrubbed(witness: Witness, web: WebServer, status: int) -> None:
    witness.shop.env["HOLDFAST_SECRET_PLAIN"] = "plain-secret"
    web.script = [lambda visit: mirror(visit, status)]
    witness.run(HTTP, {"url": web.url})

    assert json.loads(web.requests[0].body)["token"] == witness.secret
    assert web.requests[0].headers["authorization"] == "Bearer plain-secret"
    assert witness.found() == []
    witness.secret = "plain-secret"
    assert witness.found() == []


def test_a_request_that_cannot_be_sent(witness: Witness) -> None:
    witness.shop.env["HOLDFAST_SECRET_PLAIN"] = "plain-secret"
    witness.run(HTTP, {"url": "http://127.0.0.1:9"})
    assert witness.failure and witness.found() == []


def test_a_header_that_cannot_be_sent(witness: Witness) -> None:
    text = "steps: [{name: x, http: {url: 'http://127.0.0.1:9', headers: {A: \"a\\n{{ secrets.TOKEN }}\"}}}]"
    witness.run(text)

    assert "cannot have line breaks" in witness.failure and witness.found() == []


def _error_page(fill: int, visit: Visit) -> None:
    visit.answer("x" * fill + visit.received.headers["x-token"], 400)


def test_an_error_page_is_not_cut_in_the_middle_of_it(
    shop: Workshop, web: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    secret = shop.env["HOLDFAST_SECRET_TOKEN"] = "ghijklmnopqr"
    for fill in range(490, 500, 3):
        web.script = [functools.partial(_error_page, fill)]
        told = shop.error(
            f"steps: [{{name: x, http: {{url: '{web.url}', headers: {{X-Token: '{{{{ secrets.TOKEN }}}}'}}}}}}]"
        )
        assert not any(secret[:length] in told for length in range(3, len(secret)))
        (shop.folder / "runs.db").unlink()


# Agents.


@pytest.fixture
def model() -> Iterator[LlmServer]:
    with LlmServer() as running:
        yield running


def agent(model: LlmServer, prompt: str = "say {{ secrets.TOKEN }}") -> str:
    return f"""
        steps:
          - name: x
            agent:
              model: openai:gpt-4o-mini
              base_url: {model.url}
              api_key: "{{{{ secrets.KEY }}}}"
              prompt: {json.dumps(prompt)}
              system: "know {{{{ secrets.TOKEN }}}}"
            retry: {{attempts: 2, delay: 1ms}}
        """


@pytest.mark.parametrize(
    "behaviour",
    [echo(), unauthorized(), failing(400, "echo"), server_error(), reply("ok")],
    ids=["echo", "unauthorized", "refused", "broken", "ok"],
)
def test_an_agent_is_given_it_and_nobody_else(witness: Witness, model: LlmServer, behaviour: Any) -> None:
    witness.shop.env["HOLDFAST_SECRET_KEY"] = "sk-key-of-the-agent"
    model.default = behaviour
    witness.run(agent(model))

    assert model.requests[0].headers["authorization"] == "Bearer sk-key-of-the-agent"
    assert witness.secret in model.requests[0].prompt
    assert witness.found() == []
    witness.secret = "sk-key-of-the-agent"
    assert witness.found() == []


@pytest.mark.parametrize("fill", [478, 484, 490, 493, 496])
def test_an_error_of_a_model_that_repeats_the_prompt_is_not_cut_in_the_middle_of_it(
    shop: Workshop, model: LlmServer, fill: int, caplog: pytest.LogCaptureFixture
) -> None:
    secret = shop.env["HOLDFAST_SECRET_TOKEN"] = "ghijklmnopqr"
    shop.env["HOLDFAST_SECRET_KEY"] = "sk-key-of-the-agent"
    model.default = failing(400, "x" * fill + secret + "y" * 100)
    witness = Witness(shop, secret, caplog)
    witness.run(agent(model))

    assert witness.failure
    assert not any(
        secret[:length] in str(seen) for seen in witness.seen.values() for length in range(4, len(secret))
    )


def test_a_reply_that_comes_in_pieces_is_told_without_it(shop: Workshop, model: LlmServer) -> None:
    shop.env |= {"HOLDFAST_SECRET_TOKEN": "abcdefghijkl", "HOLDFAST_SECRET_KEY": "sk-key-of-the-agent"}
    model.default = reply("one\ntwo abcdefghijkl three\nfour abcdefghijkl")
    events: list[Event] = []
    shop.run(agent(model), observer=events.append)

    told = "".join(event.data["text"] for event in events if event.type == "node.stream")
    assert told == "one\ntwo *** three\nfour ***"
