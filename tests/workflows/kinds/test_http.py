"""`http` steps against real servers on loopback: what is sent, what is made of the answer, what is retried."""

from __future__ import annotations

import email.utils
import gzip
import json
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ExecutionError
from holdfast.workflows.kinds.http import address
from holdfast.workflows.scope import StepFailed
from tests.certificates import Certificate, make_certificate
from tests.workflows.web_server import Visit, WebServer, answers
from tests.workflows.workshop import Workshop


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer() as running:
        yield running


def step(url: str, more: str = "", around: str = "") -> str:
    """A workflow of one request."""
    return f"""
        workflow:
          name: test
          inputs: {{url: {{}}, text: {{default: ü b}}, n: {{type: integer, default: 3}}, none: {{}}}}
        steps:
          - name: x
            http: {{url: "{url}"{", " + more if more else ""}}}
            {around or "retry: {attempts: 3, delay: 1ms}"}
        """


class Asking:
    def __init__(self, shop: Workshop, server: WebServer) -> None:
        self.shop, self.server = shop, server

    def __call__(self, path: str = "/", more: str = "", around: str = "") -> Any:
        return self.shop.step(step(f"{{{{ inputs.url }}}}{path}", more, around), {"url": self.server.url})

    def error(self, path: str = "/", more: str = "", around: str = "") -> str:
        return self.shop.error(step(f"{{{{ inputs.url }}}}{path}", more, around), {"url": self.server.url})


@pytest.fixture
def ask(shop: Workshop, server: WebServer) -> Asking:
    return Asking(shop, server)


# What is sent.


def test_a_plain_address_is_fetched(shop: Workshop, server: WebServer) -> None:
    found = shop.step(f"steps: [{{name: x, http: '{server.url}/a'}}]")

    assert (found["output"], found["status_code"], found["status"]) == ("ok", 200, "completed")
    assert (server.requests[0].method, server.requests[0].path) == ("GET", "/a")
    assert server.requests[0].headers["user-agent"] == "holdfast"


def test_headers_query_and_json(ask: Asking) -> None:
    ask(
        "/a?have=1",
        "method: PUT, headers: {x-Number: '{{ inputs.n }}', Accept: text/html}, "
        "query: {n: '{{ inputs.n }}', text: '{{ inputs.text }}', list: [1, b], flag: true, gone: '{{ inputs.none }}'}, "
        "json: {n: '{{ inputs.n }}', text: '{{ inputs.text }}'}",
    )

    (request,) = ask.server.requests
    assert request.method == "PUT"
    assert request.path == "/a?have=1&n=3&text=%C3%BC+b&list=1&list=b&flag=true"
    assert (request.headers["x-number"], request.headers["accept"]) == ("3", "text/html")
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body) == {"n": 3, "text": "ü b"}


def test_a_body_is_text_and_makes_a_post(ask: Asking) -> None:
    ask("/", "body: 'hello {{ inputs.text }}'")

    (request,) = ask.server.requests
    assert (request.method, request.body.decode()) == ("POST", "hello ü b")
    assert request.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_content_type_of_ones_own(ask: Asking) -> None:
    ask("/", "body: a=b, headers: {content-type: application/x-www-form-urlencoded}")

    assert ask.server.requests[0].headers["content-type"] == "application/x-www-form-urlencoded"


def test_an_address_with_letters_that_it_cannot_have(ask: Asking) -> None:
    ask("/straße/{{ inputs.text }}%20c?q={{ inputs.text }}#part")

    assert ask.server.requests[0].path == "/stra%C3%9Fe/%C3%BC%20b%20c?q=%C3%BC%20b"


def test_a_host_with_letters_that_it_cannot_have() -> None:
    assert address("http://bücher.example/a", {})[0] == "http://xn--bcher-kva.example/a"


def test_credentials_in_an_address_become_a_header(ask: Asking, shop: Workshop) -> None:
    url = ask.server.url.replace("http://", "http://me:p%40ss@")
    shop.step(step(url))

    assert ask.server.requests[0].headers["authorization"] == "Basic bWU6cEBzcw=="


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:,a", "//host/a", "http://", "x"]
)
def test_what_is_no_address_is_refused_for_good(shop: Workshop, url: str) -> None:
    told = shop.error(step("{{ inputs.url }}"), {"url": url})

    assert "http.url" in told and "no http or https address" in told


@pytest.mark.parametrize(
    ("url", "shown", "reason"),
    [
        ("http://a\0b/c?q=confidential", r"http://a\x00b/c", r"control character '\x00'"),
        ("http://a/b\x01c", r"http://a/b\x01c", r"control character '\x01'"),
        ("http://me:confidential@a/\x7f", r"http://a/\x7f", r"control character '\x7f'"),
        ("http://127.0.0.1:99999/", "http://127.0.0.1:99999/", "Port out of range"),
        ("http://me:confidential@[::1/", "http://[::1/", "Invalid IPv6 URL"),
        ("http://a..b/", "http://a..b/", "its host is no domain name"),
        ("http://a b/", "http://a b/", "its host is no domain name"),
        ("http://a/\ud800", r"http://a/\ud800", "cannot be encoded"),
    ],
)
def test_an_address_that_cannot_be_requested_is_refused_with_its_reason(
    url: str, shown: str, reason: str
) -> None:
    with pytest.raises(StepFailed) as caught:
        address(url, {})

    told = str(caught.value)
    assert told.startswith(f"http.url: '{shown}' is no address: ") and reason in told
    assert "confidential" not in told and told.isprintable()


def test_line_breaks_in_an_address_are_left_out() -> None:
    assert address("http://a/b\r\nc\t?d=\ne\n", {}) == ("http://a/bc?d=e", {})


def test_the_refusal_of_an_address_names_the_step(shop: Workshop) -> None:
    told = shop.error(step("{{ inputs.url }}"), {"url": "http://a\0b/"})

    assert r"step 'x' failed: StepFailed: http.url: 'http://a\x00b/' is no address: it has the" in told


def test_headers_cannot_be_smuggled(ask: Asking, shop: Workshop) -> None:
    told = shop.error(
        step("{{ inputs.url }}", "headers: {X-A: '{{ inputs.text }}'}"),
        {"url": ask.server.url, "text": "a\r\nX-B: b"},
    )

    assert "http.headers.X-A: a header cannot have line breaks" in told
    assert ask.server.requests == []


def test_a_header_beyond_latin_1(ask: Asking, shop: Workshop) -> None:
    text = step("{{ inputs.url }}", "headers: {X-A: '{{ inputs.text }}'}")

    assert "only characters of Latin-1" in shop.error(text, {"url": ask.server.url, "text": "☃"})


def test_what_cannot_be_sent_as_json(shop: Workshop, server: WebServer) -> None:
    shop.write("import pathlib\ndef path():\n    return pathlib.PurePosixPath('a')\n", "paths.py")
    told = shop.error(
        f"""
        steps:
          - {{name: p, python: "paths.py:path"}}
          - {{name: x, http: {{url: "{server.url}", json: {{path: "{{{{ steps.p.output }}}}"}}}}}}
        """
    )

    assert "http.json: this cannot be sent as JSON" in told


def test_a_proxy_from_the_environment_is_not_asked_for_loopback(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)

    assert ask()["output"] == "ok"


def test_a_proxy_is_asked_for_other_places(
    ask: Asking, monkeypatch: pytest.MonkeyPatch, shop: Workshop
) -> None:
    monkeypatch.setenv("http_proxy", ask.server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("REQUEST_METHOD", raising=False)

    assert shop.step(step("http://somewhere.invalid/a"))["output"] == "ok"
    assert ask.server.requests[0].path == "http://somewhere.invalid/a"


# What comes back.


@pytest.mark.parametrize(
    ("behaviour", "output"),
    [
        (answers({"a": [1]}), {"a": [1]}),
        (answers("[1]", kind="application/problem+json; charset=utf-8"), [1]),
        (answers("[1]"), "[1]"),
        (answers(b"\xef\xbb\xbf[1]", kind="application/json"), [1]),
        (answers("", kind="application/json"), None),
        (answers("", 204), ""),
        (answers("ü".encode("latin-1"), kind="text/plain; charset=latin-1"), "ü"),
        (answers("ü", kind="text/plain; charset=made-up"), "ü"),
        (answers("ü".encode("cp1252"), kind="text/plain; charset=windows-1252"), "ü"),
        (answers("語".encode("shift_jis"), kind="text/plain; charset=Shift_JIS"), "語"),
        (answers("a-b", kind="text/plain; charset=punycode"), "a-b"),
        (answers("+AGEA-", kind="text/plain; charset=utf-7"), "+AGEA-"),
        (answers("6869", kind="text/plain; charset=hex"), "6869"),
        (answers(b"a\xffb"), "a\ufffdb"),
    ],
)
def test_the_answer_becomes_data(ask: Asking, behaviour: Any, output: Any) -> None:
    ask.server.script = [behaviour]

    assert ask()["output"] == output


def test_the_answer_in_a_form_that_is_asked_for(shop: Workshop, server: WebServer) -> None:
    server.script = [answers("[1]", kind="text/html"), answers({"a": 1})]

    found = shop.run(
        f"""
        steps:
          - {{name: a, http: {{url: "{server.url}", output: json}}}}
          - {{name: b, http: {{url: "{server.url}", output: text}}}}
        """
    ).state

    assert (found["a"]["output"], found["b"]["output"]) == ([1], '{"a": 1}')


def test_headers_of_the_answer_are_kept_but_no_cookies(ask: Asking) -> None:
    def behave(visit: Visit) -> None:
        visit.send_response(200)
        for name, value in (
            ("X-A", "1"),
            ("X-A", "2"),
            ("Set-Cookie", "session=abcdef"),
            ("Content-Length", "0"),
        ):
            visit.send_header(name, value)
        visit.end_headers()

    ask.server.script = [behave]
    headers = ask()["headers"]

    assert headers["x-a"] == "1, 2" and "set-cookie" not in headers


def test_head_has_headers_only(ask: Asking) -> None:
    ask.server.script = [answers({"a": 1}, X_A="1")]
    found = ask("/", "method: HEAD, output: json")

    assert (found["output"], found["headers"]["x-a"]) == (None, "1")
    assert ask.server.requests[0].method == "HEAD"


def test_an_answer_that_is_too_large(ask: Asking) -> None:
    ask.server.script = [answers("x" * 100_001)]

    assert "larger than http.max_bytes (100,000)" in ask.error("/", "max_bytes: 100000")
    assert len(ask.server.requests) == 1


def test_an_answer_of_the_size_that_is_allowed(ask: Asking) -> None:
    ask.server.script = [answers("x" * 100_000)]

    assert len(ask("/", "max_bytes: 100000")["output"]) == 100_000


def _raw_deflate(data: bytes) -> bytes:
    work = zlib.compressobj(wbits=-15)
    return work.compress(data) + work.flush()


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("X-GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", _raw_deflate),
        ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
        ("gzip", lambda data: gzip.compress(data[:3]) + gzip.compress(data[3:]) + b"\0\0"),
        ("identity", bytes),
    ],
)
def test_an_encoded_answer_is_decoded(ask: Asking, encoding: str, encode: Any) -> None:
    body = encode(b'{"a": "\xc3\xbc"}')
    ask.server.script = [answers(body, kind="application/json", Content_Encoding=encoding)]

    assert ask()["output"] == {"a": "ü"}


@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_answer_that_is_too_large_once_it_is_decoded(ask: Asking, times: int) -> None:
    body = bytes(30_000_000)
    for _ in range(times):
        body = gzip.compress(body, 1)
    ask.server.script = [answers(body, Content_Encoding=", ".join(["gzip"] * times))]

    assert "larger than http.max_bytes (1,000,000)" in ask.error("/", "max_bytes: 1000000")
    assert len(ask.server.requests) == 1


def test_an_encoded_answer_of_the_size_that_is_allowed(ask: Asking) -> None:
    ask.server.script = [answers(gzip.compress(b"12345"), Content_Encoding="gzip")]

    assert ask("/", "max_bytes: 30")["output"] == "12345"


@pytest.mark.parametrize(
    ("encoding", "body", "reason"),
    [
        ("br", b"xyz", "'br' is an encoding that cannot be decoded"),
        ("gzip", b"no gzip", "cannot be decoded as 'gzip'"),
        ("gzip", gzip.compress(b"broken off", mtime=0)[:-9], "cannot be decoded as 'gzip'"),
        ("gzip", gzip.compress(b"") * 200, "cannot be decoded as 'gzip'"),
        (", ".join(["gzip"] * 9), b"x", "has more than"),
    ],
)
def test_an_encoding_that_cannot_be_decoded(ask: Asking, encoding: str, body: bytes, reason: str) -> None:
    ask.server.script = [answers(body, Content_Encoding=encoding)]

    assert reason in ask.error()


def test_other_statuses_can_be_good(ask: Asking) -> None:
    ask.server.script = [answers({"gone": True}, 404)]

    assert ask("/", "ok_status: [200, 404]")["output"] == {"gone": True}


def test_a_good_status_that_is_not_wanted_fails(ask: Asking) -> None:
    assert "the server answered 200" in ask.error("/", "ok_status: [201]")


# What goes wrong.


@pytest.mark.parametrize("status", [400, 401, 404, 501])
def test_a_refusal_is_not_repeated(ask: Asking, status: int) -> None:
    ask.server.script = [answers("what is this?", status)]

    assert f"the server answered {status}: what is this?" in ask.error()
    assert len(ask.server.requests) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_trouble_that_may_pass_is_waited_for(ask: Asking, status: int) -> None:
    ask.server.script = [answers("busy", status), answers("busy", status), answers("fine")]

    assert ask()["output"] == "fine"
    assert len(ask.server.requests) == 3


def test_trouble_that_does_not_pass_fails_and_can_be_resumed(ask: Asking, shop: Workshop) -> None:
    ask.server.script = [answers("busy", 503)]
    assert "the server answered 503: busy" in ask.error()
    assert len(ask.server.requests) == 3

    ask.server.script = [answers("fine")]
    assert shop.resume().state["x"]["output"] == "fine"


def test_a_step_that_is_not_idempotent_is_not_repeated_unasked(ask: Asking) -> None:
    ask.server.script = [answers("busy", 503)]
    ask.error("/", "method: POST", "idempotent: false")

    assert len(ask.server.requests) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(ask: Asking, form: str) -> None:
    after = "1" if form == "seconds" else email.utils.formatdate(time.time() + 2, usegmt=True)
    ask.server.script = [answers("slow down", 429, Retry_After=after), answers("fine")]
    begun = time.monotonic()

    assert ask()["output"] == "fine"
    assert time.monotonic() - begun >= 0.9


def test_a_charset_that_takes_quadratic_time_is_not_used(ask: Asking) -> None:
    """As punycode, 1 MB would take hours, whatever the timeout of the step."""
    ask.server.script = [answers("a" * 1_000_000 + "-" + "z9" * 200_000, kind="text/plain; charset=punycode")]

    assert len(ask()["output"]) == 1_400_001


def test_a_content_type_of_many_parts_costs_nothing(ask: Asking) -> None:
    ask.server.script = [answers("fine", kind='text/plain; x="' + ";" * 60_000)]

    assert ask()["output"] == "fine"


def test_a_server_that_asks_for_years_is_asked_again_after_max_delay(ask: Asking) -> None:
    ask.server.script = [answers("slow down", 429, Retry_After="999999999"), answers("fine")]

    assert ask("/", "", "retry: {max_delay: 10ms, delay: 1ms}")["output"] == "fine"


@pytest.mark.parametrize("value", ["soon", "²", "-5", "Mon, 99 Foo 2999 99:99:99 GMT", "9" * 400])
def test_a_retry_after_that_means_nothing(ask: Asking, value: str) -> None:
    ask.server.script = [lambda visit: _retry_after(visit, value), answers("fine")]

    assert ask()["output"] == "fine"


def _retry_after(visit: Visit, value: str) -> None:
    visit.send_response(503)
    visit.send_header("Retry-After", value.encode().decode("latin-1"))
    visit.send_header("Content-Length", "0")
    visit.end_headers()


def test_json_that_is_broken_may_be_whole_the_next_time(ask: Asking) -> None:
    ask.server.script = [answers('{"a": ', kind="application/json"), answers({"a": 1})]

    assert ask()["output"] == {"a": 1}


def test_json_that_stays_broken(ask: Asking) -> None:
    ask.server.script = [answers("<html>", kind="application/json")]

    assert "the response is no JSON" in ask.error() and len(ask.server.requests) == 3


def test_nobody_listens(shop: Workshop) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        told = shop.error(step(f"http://127.0.0.1:{port}/a?secret=1"))

    assert f"GET http://127.0.0.1:{port}/a: Connection refused" in told and "secret" not in told


def test_an_answer_that_breaks_off(ask: Asking) -> None:
    def behave(visit: Visit) -> None:
        visit.send_response(200)
        visit.send_header("Content-Length", "100")
        visit.end_headers()
        visit.wfile.write(b"half")
        visit.close_connection = True

    ask.server.script = [behave, answers("whole")]

    assert ask()["output"] == "whole"


def test_a_connection_that_is_closed_without_a_word(ask: Asking) -> None:
    def behave(visit: Visit) -> None:
        visit.close_connection = True

    ask.server.script = [behave, answers("whole")]

    assert ask()["output"] == "whole"


@pytest.mark.parametrize("when", ["before", "headers", "body"])
def test_a_server_that_takes_its_time_is_left_in_time(ask: Asking, when: str) -> None:
    def behave(visit: Visit) -> None:
        pieces = {
            "headers": b"HTTP/1.1 200 OK\r\nX-A: aaaaaaaaaaaaaaaaaaaaaa",
            "body": b"aaaaaaaaaaaaaaaaaaaaaaa",
        }
        if when == "body":
            visit.send_response(200)
            visit.end_headers()
        for byte in pieces.get(when, b""):
            visit.wfile.write(bytes([byte]))
            visit.wfile.flush()
            if ask.server.closing.wait(0.2):
                return
        ask.server.closing.wait()

    ask.server.script = [behave]
    told = ask.error("/", around="timeout: 700ms\n            retry: {attempts: 1}")

    assert "took longer than 0.7 s" in told


def test_a_timeout_is_retried(ask: Asking) -> None:
    def behave(visit: Visit) -> None:
        ask.server.closing.wait()

    ask.server.script = [behave, answers("at last")]
    around = "timeout: 2s\n            retry: {attempts: 2, delay: 1ms, on: timeout}"

    assert ask("/", around=around)["output"] == "at last"


def test_templates_that_cannot_be_filled_name_the_field(shop: Workshop) -> None:
    for field, value in (("url", "http://127.0.0.1:9/{{ inputs.none.x }}"), ("body", "{{ inputs.none.x }}")):
        told = shop.error(step(value) if field == "url" else step("http://127.0.0.1:9", f"body: '{value}'"))
        assert f"http.{field}: in 'inputs.none.x'" in told
        (shop.folder / "runs.db").unlink()


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    """A certificate that nobody knows."""
    return make_certificate(tmp_path)


def test_a_certificate_that_is_not_known_is_refused_for_good(
    shop: Workshop, certificate: Certificate
) -> None:
    with WebServer(certificate=certificate) as server:
        told = shop.error(step(server.url))

    assert "certificate verify failed" in told.lower() and server.requests == []


def test_https_with_a_certificate_that_is_known(
    shop: Workshop, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    with WebServer(certificate=certificate) as server:
        server.script = [answers({"a": 1})]
        assert shop.step(step(server.url))["output"] == {"a": 1}


def test_credentials_do_not_follow_from_https_to_http(
    ask: Asking, shop: Workshop, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    with WebServer(certificate=certificate) as safe:
        safe.script = [answers("", 302, Location=f"{ask.server.url}/b")]
        shop.step(step(safe.url, "headers: {Authorization: mine}"))

    assert (
        "authorization" in safe.requests[0].headers and "authorization" not in ask.server.requests[0].headers
    )


# Redirects.


def test_redirects_are_followed(ask: Asking) -> None:
    ask.server.script = [answers("", 302, Location="/b"), answers("there")]

    assert ask("/a", "headers: {Authorization: mine, X-Key: mine}")["output"] == "there"
    assert [request.path for request in ask.server.requests] == ["/a", "/b"]
    assert ask.server.requests[1].headers["authorization"] == "mine"


def test_credentials_do_not_follow_to_another_place(ask: Asking) -> None:
    with WebServer() as other:
        ask.server.script = [answers("", 302, Location=f"{other.url}/b")]
        ask("/a", "headers: {Authorization: mine, Cookie: mine, X-Api-Key: mine, Accept: text/html}")

    (request,) = other.requests
    assert "mine" not in request.headers.values()
    assert request.headers["accept"] == "text/html"


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a", "javascript:a"])
def test_redirects_to_other_kinds_of_places_are_not_followed(ask: Asking, target: str) -> None:
    ask.server.script = [answers("look there", 302, Location=target)]

    told = ask.error()

    assert "the server answered 302" in told and "root:" not in told


def test_what_was_sent_is_not_sent_again_to_where_a_redirect_leads(ask: Asking) -> None:
    ask.server.script = [answers("", 307, Location="/b"), answers("twice?")]

    told = ask.error("/a", "json: {amount: 1}")

    assert "the server answered 307 and redirects to /b" in told and len(ask.server.requests) == 1


def test_a_circle_of_redirects_ends(ask: Asking) -> None:
    ask.server.script = [answers("", 302, Location="/a")]

    assert "the server answered 302" in ask.error("/a")


def test_a_redirect_can_be_the_answer(ask: Asking) -> None:
    ask.server.script = [answers("", 302, Location="/b")]

    found = ask("/a", "ok_status: [302]")

    assert (found["status_code"], found["headers"]["location"]) == (302, "/b")


def test_failures_of_the_step_are_errors_of_its_own(shop: Workshop, server: WebServer) -> None:
    server.script = [answers("no", 400)]

    with pytest.raises(ExecutionError) as caught:
        shop.run(step(server.url))

    assert isinstance(caught.value.cause, StepFailed) and caught.value.node == "x"
