"""Asking a model: text, structured output, tools, streams."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast.agents.provider import AgentError, AgentOutputInvalid, Tool, Usage, provider_for
from holdfast.agents.pydantic_ai_provider import PydanticAIProvider
from tests.agents.conftest import Ask
from tests.agents.llm_server import LlmServer, hang, reply, structured, tool_call, tool_calls

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "mood": {"enum": ["good", "bad"]},
        "pets": {"type": "array", "items": {"type": "object", "required": ["kind"]}},
    },
    "required": ["name", "age"],
}
ANN = {"name": "Ann", "age": 41, "mood": "good", "pets": [{"kind": "cat"}]}

provider = PydanticAIProvider()


def add(first: int, second: int = 1) -> int:
    """Adds two numbers."""
    return first + second


def test_a_model_answers_with_text(server: LlmServer, ask: Ask) -> None:
    server.script([reply("Good day.", tokens=(7, 3))])

    answered = provider.complete(ask("Say good day."))

    assert (answered.output, answered.text) == ("Good day.", "Good day.")
    assert answered.usage == Usage(7, 3, 1)
    assert answered.model == "gpt-4o-mini"


def test_the_request_says_what_was_asked_for(server: LlmServer, ask: Ask) -> None:
    provider.complete(ask("Why?", system="Be {{brief}}.", temperature=0.25, max_tokens=99, api_key="key-1"))

    (request,) = server.requests
    assert (request.prompt, request.system) == ("Why?", "Be {{brief}}.")
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer key-1"
    assert (request.body["model"], request.body["temperature"]) == ("gpt-4o-mini", 0.25)
    assert request.body["max_completion_tokens"] == 99
    assert "tools" not in request.body and not request.body["stream"]


def test_structured_output_is_plain_data_that_fits_the_schema(server: LlmServer, ask: Ask) -> None:
    server.script([structured(ANN)])

    answered = provider.complete(ask(output_schema=PERSON))

    assert answered.output == ANN and type(answered.output) is dict
    assert answered.text == '{"name": "Ann", "age": 41, "mood": "good", "pets": [{"kind": "cat"}]}'
    assert answered.usage == Usage(10, 5, 1)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ({"enum": ["yes", "no"]}, "yes"),
        ({"type": "number"}, 2.5),
        ({"$ref": "#/$defs/word", "$defs": {"word": {"type": "string"}}}, "x"),
    ],
)
def test_output_need_not_be_an_object(server: LlmServer, ask: Ask, schema: Any, value: Any) -> None:
    server.script([structured(value)])

    assert provider.complete(ask(output_schema=schema)).output == value


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (structured({"name": "Ann"}), "lacks 'age'"),
        (structured({"name": "Ann", "age": "41"}), "age must be of type integer"),
        (structured({"name": "Ann", "age": 41, "mood": "so-so"}), "mood must be one of"),
        (structured({"name": "Ann", "age": 41, "pets": [{}]}), "pets[0] lacks 'kind'"),
        (tool_call("final_result", '{"name": "Ann", '), "JSON"),
        (reply("Ann is 41."), ""),
        (tool_call("no_such_tool", {}), "no_such_tool"),
    ],
)
def test_output_that_does_not_fit_is_corrected_once(
    server: LlmServer, ask: Ask, wrong: Any, reason: str
) -> None:
    server.script([wrong, structured(ANN)])

    answered = provider.complete(ask(output_schema=PERSON))

    assert answered.output == ANN
    assert answered.usage == Usage(20, 10, 2)
    assert reason in server.requests[1].body["messages"][-1]["content"]


def test_output_that_never_fits_fails_after_one_correction_and_says_what_it_cost(
    server: LlmServer, ask: Ask
) -> None:
    server.default = structured({"name": "Ann", "age": "old"}, tokens=(30, 20))

    with pytest.raises(AgentOutputInvalid, match="age must be of type integer, not 'old'") as caught:
        provider.complete(ask(output_schema=PERSON))

    assert caught.value.usage == Usage(60, 40, 2)
    assert len(server.requests) == 2


def test_two_different_mistakes_are_two_mistakes(server: LlmServer, ask: Ask) -> None:
    server.script([reply("Ann."), tool_call("final_result", "{"), structured(ANN)])

    with pytest.raises(AgentOutputInvalid) as caught:
        provider.complete(ask(output_schema=PERSON))

    assert caught.value.usage.requests == len(server.requests) == 2


def test_an_empty_reply_is_asked_for_once_more(server: LlmServer, ask: Ask) -> None:
    server.script([reply(""), reply("at last")])
    assert provider.complete(ask()).text == "at last"

    server.default = reply("")
    with pytest.raises(AgentOutputInvalid) as caught:
        provider.complete(ask())
    assert caught.value.usage == Usage(20, 10, 2)


def test_output_that_is_cut_off_says_so(server: LlmServer, ask: Ask) -> None:
    server.default = tool_call("final_result", '{"name": "A', reason="length")

    with pytest.raises(AgentOutputInvalid, match="max_tokens") as caught:
        provider.complete(ask(output_schema=PERSON, max_tokens=5))

    assert caught.value.usage == Usage(10, 5, 1) and len(server.requests) == 1


def test_a_schema_that_cannot_be_checked_is_refused_before_anything_is_asked(
    server: LlmServer, ask: Ask
) -> None:
    with pytest.raises(AgentError, match="patternProperties"):
        provider.complete(ask(output_schema={"type": "object", "patternProperties": {}}))

    assert server.requests == []


def test_a_tool_is_called_and_its_result_goes_back(server: LlmServer, ask: Ask) -> None:
    server.script([tool_call("plus", {"first": 2, "second": 3}), reply("It is 5.")])

    answered = provider.complete(ask("2 + 3?", tools=(Tool("plus", add),)))

    first, second = server.requests
    assert first.tools["plus"]["description"] == "Adds two numbers."
    assert first.tools["plus"]["parameters"]["properties"]["first"] == {"type": "integer"}
    assert first.tools["plus"]["parameters"]["required"] == ["first"]
    assert second.tool_results == ["5"]
    assert (answered.text, answered.usage) == ("It is 5.", Usage(20, 10, 2))


def test_tools_run_in_the_callers_thread_one_after_the_other(server: LlmServer, ask: Ask) -> None:
    ran: list[tuple[str, threading.Thread]] = []

    def note(word: str) -> str:
        ran.append((word, threading.current_thread()))
        return word.upper()

    server.script([tool_calls(("note", {"word": "a"}), ("note", {"word": "b"})), reply("done")])

    provider.complete(ask(tools=(Tool("note", note, "Notes a word."),)))

    assert ran == [("a", threading.current_thread()), ("b", threading.current_thread())]
    assert server.requests[0].tools["note"]["description"] == "Notes a word."
    assert server.requests[1].tool_results == ["A", "B"]


def test_an_async_function_can_be_a_tool(server: LlmServer, ask: Ask) -> None:
    async def later(word: str) -> str:
        await asyncio.sleep(0)
        return word * 2

    server.script([tool_call("later", {"word": "ha"}), reply("done")])

    provider.complete(ask(tools=(Tool("later", later),)))

    assert server.requests[1].tool_results == ["haha"]


def test_wrong_arguments_go_back_to_the_model(server: LlmServer, ask: Ask) -> None:
    wrong = tool_call("plus", {"first": "two"})
    server.script([wrong, wrong, tool_call("plus", {"first": 2}), reply("done")])

    assert provider.complete(ask(tools=(Tool("plus", add),))).usage.requests == 4

    assert server.requests[3].tool_results[-1] == "3"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_fails_ends_the_call(server: LlmServer, ask: Ask, is_async: bool) -> None:
    def broken() -> None:
        raise LookupError("no such shelf")

    async def broken_later() -> None:
        broken()

    server.default = tool_call("shelf", {})

    with pytest.raises(AgentError, match="tool 'shelf' failed with LookupError: no such shelf") as caught:
        provider.complete(ask(tools=(Tool("shelf", broken_later if is_async else broken),)))

    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.value.usage == Usage(10, 5, 1) and len(server.requests) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_may_tell_the_model_to_try_again(server: LlmServer, ask: Ask, is_async: bool) -> None:
    from pydantic_ai import ModelRetry

    def pick(shelf: int) -> str:
        if shelf > 3:
            raise ModelRetry("there are only three shelves")
        return "a book"

    async def pick_later(shelf: int) -> str:
        return pick(shelf)

    server.script([tool_call("pick", {"shelf": 9}), tool_call("pick", {"shelf": 1}), reply("done")])

    provider.complete(ask(tools=(Tool("pick", pick_later if is_async else pick),)))

    refused, picked = server.requests[2].tool_results
    assert "only three shelves" in refused and picked == "a book"


def test_what_a_tool_raises_to_leave_the_step_is_passed_on_as_it_is(server: LlmServer, ask: Ask) -> None:
    class Leave(BaseException):
        pass

    def leave() -> None:
        raise Leave

    server.default = tool_call("leave", {})

    with pytest.raises(Leave):
        provider.complete(ask(tools=(Tool("leave", leave),)))


def test_turns_are_limited(server: LlmServer, ask: Ask) -> None:
    server.default = tool_call("plus", {"first": 1})

    with pytest.raises(AgentError, match="more than 3 turns") as caught:
        provider.complete(ask(tools=(Tool("plus", add),), max_turns=3))

    assert caught.value.usage == Usage(30, 15, 3) and len(server.requests) == 3


def test_tools_and_structured_output_go_together(server: LlmServer, ask: Ask) -> None:
    server.script([tool_call("plus", {"first": 40}), structured(ANN)])

    answered = provider.complete(ask(tools=(Tool("plus", add),), output_schema=PERSON))

    assert (answered.output, answered.usage.requests) == (ANN, 2)


def test_text_is_streamed_in_pieces_to_the_callers_thread(server: LlmServer, ask: Ask) -> None:
    pieces: list[str] = []
    threads: set[threading.Thread] = set()

    def hear(piece: str) -> None:
        pieces.append(piece)
        threads.add(threading.current_thread())

    server.script([reply("one two three", tokens=(4, 6))])

    answered = provider.complete(ask(), hear)

    assert pieces == ["one ", "two ", "thre", "e"]
    assert threads == {threading.current_thread()}
    assert (answered.text, answered.usage) == ("one two three", Usage(4, 6, 1))
    assert server.requests[0].body["stream"]


def test_tools_and_structured_output_work_in_a_stream(server: LlmServer, ask: Ask) -> None:
    server.script([tool_call("plus", {"first": 40}), structured({"name": 1}), structured(ANN)])

    answered = provider.complete(ask(tools=(Tool("plus", add),), output_schema=PERSON), lambda _: None)

    assert (answered.output, answered.usage) == (ANN, Usage(30, 15, 3))
    assert "41" in server.requests[1].tool_results


def test_what_the_listener_raises_ends_the_call(server: LlmServer, ask: Ask) -> None:
    def refuse(_: str) -> None:
        raise RuntimeError("enough")

    server.script([hang("some text")])

    with pytest.raises(RuntimeError, match="enough"):
        provider.complete(ask(), refuse)


async def test_it_can_be_called_where_a_loop_is_running(server: LlmServer, ask: Ask) -> None:
    server.script([reply("from a loop")])

    assert asyncio.get_running_loop().is_running()
    assert provider.complete(ask()).text == "from a loop"


def test_it_can_be_called_in_many_threads_at_once(server: LlmServer, ask: Ask) -> None:
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(provider.complete(ask()).text)) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert texts == ["ok"] * 8


def test_other_providers_are_reached_by_their_prefix(server: LlmServer, ask: Ask) -> None:
    server.script([reply("from llama")])

    asked = ask(model="ollama:llama3", api_key="key-2")
    answered = provider_for(asked.model).complete(asked)

    assert (answered.text, answered.cost) == ("from llama", None)
    assert server.requests[0].headers["authorization"] == "Bearer key-2"


def test_the_address_may_come_from_the_environment(
    server: LlmServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "key-4")

    assert provider.complete(ask(base_url=None)).text == "ok"

    assert server.requests[0].headers["authorization"] == "Bearer key-4"


def test_a_provider_that_takes_no_address_says_so(ask: Ask) -> None:
    with pytest.raises(AgentError, match="does not take base_url"):
        provider.complete(ask(model="deepseek:deepseek-chat"))
