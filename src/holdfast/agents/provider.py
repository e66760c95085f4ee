"""What a workflow asks of a language model and what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.errors import HoldfastError


@dataclass(frozen=True, slots=True)
class Tool:
    """A Python function that the model may call. Its signature and docstring tell the model how."""

    name: str
    function: Callable[..., Any]
    description: str = ""
    """What the tool does, for the model; the function's docstring if empty."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One question to a model, with everything that is needed to ask it."""

    model: str
    """Who answers: a provider, a colon and the provider's name of the model, as in `openai:gpt-5-mini`."""
    prompt: str
    system: str = ""
    output_schema: dict[str, Any] | None = None
    """A JSON Schema that the output must fit; without it the output is text."""
    tools: tuple[Tool, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    base_url: str | None = None
    """Where to ask, instead of the provider's own address."""
    api_key: str | None = field(default=None, repr=False)
    timeout: float | None = None
    """Seconds for the whole call: all its turns and tools."""
    max_turns: int = 20
    """How often the model may be asked before the call is given up: each round of tool calls is a turn."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call has used up: tokens, and requests that the model answered."""

    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.requests + other.requests,
        )


@dataclass(frozen=True, slots=True)
class AgentReply:
    """What came of a call."""

    output: Any
    """Plain data that fits the schema, or the text if there was none."""
    text: str
    """The output as the model wrote it; JSON if a schema was given."""
    usage: Usage
    model: str
    """The model that answered, by the name it gives itself."""
    cost: float | None
    """US dollars by the public price list, or `None` if it does not know the model."""


class Provider(Protocol):
    """Somebody who can put a request to a model."""

    def complete(self, request: AgentRequest, on_text: Callable[[str], None] | None = None) -> AgentReply:
        """Return the model's reply. Blocks; may be called in any thread, whether or not a loop runs in it.

        With `on_text` the reply is streamed, and `on_text` gets each piece of text as it comes. A failed
        request is not repeated: `TransientAgentError` says that repeating it may help. Structured output
        that does not fit may be corrected once, at the price of one more request.
        """
        ...


class AgentError(HoldfastError):
    """A model call failed; `usage` is what it used nevertheless."""

    def __init__(self, message: str, *, usage: Usage | None = None) -> None:
        self.usage = usage or Usage()
        super().__init__(message)


class TransientAgentError(AgentError):
    """A call failed in a way that may pass: a rate limit, an overload, a timeout, a lost connection.

    `retry_after` is how many seconds the service asked to be left alone, if it said.
    """

    def __init__(self, message: str, *, usage: Usage | None = None, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message, usage=usage)


class AgentOutputInvalid(AgentError):
    """The model's reply is not JSON or does not fit the schema, even after it was asked to correct it."""


PREFIXES = (
    "alibaba", "anthropic", "azure", "bedrock", "cerebras", "cohere", "deepseek", "fireworks", "github",
    "google", "google-cloud", "groq", "heroku", "huggingface", "litellm", "mistral", "moonshotai", "nebius",
    "ollama", "openai", "openai-responses", "openrouter", "ovhcloud", "together", "vercel", "vllm", "xai",
)  # fmt: skip
"""The providers that need no registering. Each uses its own package; `openai` is what the extra brings."""

_factories: dict[str, Callable[[], Provider]] = {}


def register_provider(prefix: str, factory: Callable[[], Provider]) -> None:
    """Register `factory` as the provider of all models named `prefix:…`, replacing a provider with the same prefix."""
    if not prefix or ":" in prefix or prefix != prefix.strip():
        raise AgentError(f"{prefix!r} cannot be a provider's prefix: write a word without a colon")
    _factories[prefix] = factory


def provider_for(model: str) -> Provider:
    """Return the provider of `model`, which is written `prefix:name`."""
    prefix, colon, name = model.partition(":")
    if not colon or not prefix or not name:
        raise AgentError(
            f"model {model!r} does not say whose it is: write PROVIDER:NAME, as in 'openai:{model}'"
        )
    if prefix in _factories:
        return _factories[prefix]()
    if prefix not in PREFIXES:
        known = ", ".join(sorted({*PREFIXES, *_factories}))
        raise AgentError(f"model {model!r} names the unknown provider {prefix!r}; known are {known}")
    try:
        from holdfast.agents.pydantic_ai_provider import PydanticAIProvider
    except ImportError as error:
        needed = "needs the agents extra: pip install 'holdfast[agents]'"
        raise AgentError(f"model {model!r} {needed} ({error})") from error
    return PydanticAIProvider()


# What a call costs: by the price its workflow states, else by the price list that is installed.


def cost(model: str, usage: Usage, price: Mapping[str, float] | None = None) -> float | None:
    """US dollars for `usage` of `model`, written `provider:name`, or `None` if no price is known.

    `price` states dollars per million tokens: `{"input": 0.25, "output": 2.0}`. Without it the price list
    that came with the agents extra is asked; nothing is looked up on the network.
    """
    if price is None:
        return _listed(model, usage)
    if unknown := sorted(set(price) - {"input", "output"}):
        raise HoldfastError(f"a price has 'input' and 'output', in dollars per million tokens, not {unknown}")
    spent = usage.input_tokens * price.get("input", 0.0) + usage.output_tokens * price.get("output", 0.0)
    return spent / 1_000_000


def _listed(model: str, usage: Usage) -> float | None:
    """By the price list. Long requests may cost more per token, so the tokens are spread over the requests."""
    try:
        import genai_prices
    except ImportError:
        return None
    provider, _, name = model.partition(":")
    others = max(usage.requests, 1) - 1
    given, made = usage.input_tokens // (others + 1), usage.output_tokens // (others + 1)
    last = (usage.input_tokens - others * given, usage.output_tokens - others * made)
    total = 0.0
    try:
        for times, tokens in ((others, (given, made)), (1, last)):
            spent = genai_prices.Usage(input_tokens=tokens[0], output_tokens=tokens[1])
            total += times * float(genai_prices.calc_price(spent, name, provider_id=provider).total_price)
    except (LookupError, ValueError):
        return None
    return total
