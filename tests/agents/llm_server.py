"""A real HTTP server on loopback that speaks the chat completions protocol and does what a test scripts."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

TOKENS = (10, 5)
"""Input and output tokens of every reply that does not say otherwise."""

OUTPUT_TOOL = "final_result"


@dataclass(frozen=True)
class Recorded:
    """One request as it came in."""

    path: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The last thing the user said."""
        return str([message["content"] for message in self.body["messages"] if message["role"] == "user"][-1])

    @property
    def system(self) -> str:
        """The system prompt of the request."""
        told = (message for message in self.body["messages"] if message["role"] in ("system", "developer"))
        return "\n".join(str(message["content"]) for message in told)

    @property
    def tools(self) -> dict[str, dict[str, Any]]:
        """The tools on offer, by name."""
        return {tool["function"]["name"]: tool["function"] for tool in self.body.get("tools", ())}

    @property
    def tool_results(self) -> list[str]:
        """What the tools returned so far."""
        return [str(message["content"]) for message in self.body["messages"] if message["role"] == "tool"]


@dataclass
class Exchange:
    """One request, and the means to answer it."""

    handler: BaseHTTPRequestHandler
    request: Recorded
    number: int
    closing: threading.Event

    def send(self, status: int, body: str, headers: Mapping[str, str] | None = None) -> None:
        """Answer with a whole body."""
        data = body.encode()
        self.handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.handler.send_header(name, value)
        self.handler.send_header("Content-Length", str(len(data)))
        self.handler.end_headers()
        self.handler.wfile.write(data)

    def send_message(self, message: dict[str, Any], reason: str, tokens: tuple[int, int]) -> None:
        """Answer as a model does, streamed if that was asked for."""
        if self.request.body.get("stream"):
            self._open_stream()
            for chunk in self._chunks(message, reason, tokens):
                self._send_chunk(chunk)
            self._write(b"data: [DONE]\n\n")
        else:
            choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
            usage = _usage(tokens)
            whole = self._frame("chat.completion") | {"choices": [choice], "usage": usage}
            self.send(200, json.dumps(whole))

    def send_part_of_stream(self, text: str) -> None:
        """Begin to stream, and stop in the middle."""
        self._open_stream()
        for piece in _pieces(text):
            self._send_chunk(self._delta({"content": piece}))

    def _frame(self, kind: str) -> dict[str, Any]:
        model = self.request.body.get("model")
        return {"id": f"chatcmpl-{self.number}", "object": kind, "created": 1_700_000_000, "model": model}

    def _delta(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return self._frame("chat.completion.chunk") | {"choices": [choice]}

    def _chunks(
        self, message: dict[str, Any], reason: str, tokens: tuple[int, int]
    ) -> Iterator[dict[str, Any]]:
        yield self._delta({"role": "assistant", "content": ""})
        for piece in _pieces(message.get("content") or ""):
            yield self._delta({"content": piece})
        for index, call in enumerate(message.get("tool_calls", ())):
            function = call["function"]
            first = {**call, "index": index, "function": {**function, "arguments": ""}}
            yield self._delta({"tool_calls": [first]})
            for piece in _pieces(function["arguments"]):
                yield self._delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield self._delta({}, reason)
        if self.request.body.get("stream_options", {}).get("include_usage"):
            yield self._frame("chat.completion.chunk") | {"choices": [], "usage": _usage(tokens)}

    def _open_stream(self) -> None:
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "text/event-stream")
        self.handler.send_header("Connection", "close")
        self.handler.end_headers()
        self.handler.close_connection = True

    def _send_chunk(self, chunk: dict[str, Any]) -> None:
        self._write(f"data: {json.dumps(chunk)}\n\n".encode())

    def _write(self, data: bytes) -> None:
        self.handler.wfile.write(data)
        self.handler.wfile.flush()


Behaviour = Callable[[Exchange], None]


def reply(text: str, *, tokens: tuple[int, int] = TOKENS, reason: str = "stop") -> Behaviour:
    """The model says `text`."""
    return lambda exchange: exchange.send_message({"content": text}, reason, tokens)


def echo(*, tokens: tuple[int, int] = TOKENS) -> Behaviour:
    """The model repeats the prompt."""
    return lambda exchange: exchange.send_message({"content": exchange.request.prompt}, "stop", tokens)


def tool_call(
    name: str,
    arguments: Mapping[str, Any] | str,
    *,
    tokens: tuple[int, int] = TOKENS,
    reason: str = "tool_calls",
) -> Behaviour:
    """The model calls a tool; arguments given as text are sent as they are, be they JSON or not."""
    return tool_calls((name, arguments), tokens=tokens, reason=reason)


def tool_calls(
    *calls: tuple[str, Mapping[str, Any] | str],
    tokens: tuple[int, int] = TOKENS,
    reason: str = "tool_calls",
) -> Behaviour:
    """The model calls several tools at once."""

    def behave(exchange: Exchange) -> None:
        made = [
            {
                "id": f"call_{exchange.number}_{place}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for place, (name, arguments) in enumerate(calls)
        ]
        exchange.send_message({"content": None, "tool_calls": made}, reason, tokens)

    return behave


def structured(value: Any, *, tokens: tuple[int, int] = TOKENS) -> Behaviour:
    """The model gives `value` as its output, in whichever way the request wants structured output."""

    def behave(exchange: Exchange) -> None:
        tool = exchange.request.tools.get(OUTPUT_TOOL)
        if tool is None:
            exchange.send_message({"content": json.dumps(value)}, "stop", tokens)
            return
        wrapped = list(tool["parameters"].get("properties", ())) == ["result"]
        arguments = {"result": value} if wrapped else value
        tool_call(OUTPUT_TOOL, json.dumps(arguments), tokens=tokens)(exchange)

    return behave


def failing(
    status: int,
    message: str = "it failed",
    *,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Behaviour:
    """The service answers with an HTTP error."""
    body = json.dumps({"error": {"message": message, "type": "error", "code": code}})
    return lambda exchange: exchange.send(status, body, headers)


def rate_limit(retry_after: float | str | None = None) -> Behaviour:
    """HTTP 429, with `Retry-After` if given."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return failing(429, "slow down", code="rate_limit_exceeded", headers=headers)


def server_error(status: int = 500) -> Behaviour:
    """HTTP 500, or another error of the server's."""
    return failing(status, "something broke")


def unauthorized() -> Behaviour:
    """HTTP 401 by a service that is careless enough to repeat the key it was given."""

    def behave(exchange: Exchange) -> None:
        key = exchange.request.headers.get("authorization", "").removeprefix("Bearer ")
        failing(401, f"Incorrect API key provided: {key}", code="invalid_api_key")(exchange)

    return behave


def malformed(body: str = '{"choices": [') -> Behaviour:
    """HTTP 200 with a body that is not JSON."""
    return lambda exchange: exchange.send(200, body)


def truncated(text: str = "the beginning of") -> Behaviour:
    """The stream ends before the reply does; without streaming, the body does."""

    def behave(exchange: Exchange) -> None:
        if exchange.request.body.get("stream"):
            exchange.send_part_of_stream(text)
            return
        exchange.handler.send_response(200)
        exchange.handler.send_header("Content-Length", "1000")
        exchange.handler.end_headers()
        exchange.handler.wfile.write(b'{"choices": [')
        exchange.handler.close_connection = True

    return behave


def hang(text: str = "") -> Behaviour:
    """Never answers, until the server closes; with `text`, after having streamed that much."""

    def behave(exchange: Exchange) -> None:
        if text:
            exchange.send_part_of_stream(text)
        exchange.closing.wait()
        exchange.handler.close_connection = True

    return behave


def disconnect() -> Behaviour:
    """Closes the connection without a word."""

    def behave(exchange: Exchange) -> None:
        exchange.handler.close_connection = True

    return behave


@dataclass
class LlmServer:
    """Answers as scripted, then by default. Use it as a context manager; `url` ends in `/v1`."""

    default: Behaviour = field(default_factory=lambda: reply("ok"))
    url: str = ""
    requests: list[Recorded] = field(default_factory=list)
    """Every request so far, in the order in which they came."""
    _script: deque[Behaviour] = field(default_factory=deque)
    _arrived: threading.Condition = field(default_factory=threading.Condition)
    _closing: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def script(self, behaviours: Sequence[Behaviour]) -> None:
        """Answer the next requests so, one each, whatever was scripted before."""
        with self._arrived:
            self._script = deque(behaviours)

    def wait_for(self, count: int, timeout: float = 30.0) -> None:
        """Wait until `count` requests have arrived."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.requests) >= count, timeout), self.requests

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Record a request and do what is scripted."""
        data = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        recorded = Recorded(handler.path, headers, json.loads(data or b"{}"))
        with self._arrived:
            self.requests.append(recorded)
            number = len(self.requests)
            behave = self._script.popleft() if self._script else self.default
            self._arrived.notify_all()
        behave(Exchange(handler, recorded, number, self._closing))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server.answer(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no error here."""


def _usage(tokens: tuple[int, int]) -> dict[str, int]:
    return {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}


def _pieces(text: str) -> list[str]:
    """The text in pieces of up to four characters."""
    return [text[start : start + 4] for start in range(0, len(text), 4)]
