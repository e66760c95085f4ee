"""What a call costs: by the price its workflow states, else by the price list that is installed."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.agents.provider import Usage
from holdfast.errors import HoldfastError

_MILLION = 1_000_000


def cost(model: str, usage: Usage, price: Mapping[str, float] | None = None) -> float | None:
    """US dollars for `usage` of `model`, written `provider:name`, or `None` if no price is known.

    `price` states dollars per million tokens: `{"input": 0.25, "output": 2.0}`. Without it the price list
    that came with the agents extra is asked; nothing is looked up on the network.
    """
    if price is not None:
        return _stated(usage, price)
    return _listed(model, usage)


def _stated(usage: Usage, price: Mapping[str, float]) -> float:
    if unknown := sorted(set(price) - {"input", "output"}):
        raise HoldfastError(f"a price has 'input' and 'output', in dollars per million tokens, not {unknown}")
    spent = usage.input_tokens * price.get("input", 0.0) + usage.output_tokens * price.get("output", 0.0)
    return spent / _MILLION


def _listed(model: str, usage: Usage) -> float | None:
    """By the price list. Long requests may cost more per token, so the tokens are spread over the requests."""
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ImportError:
        return None
    provider, _, name = model.partition(":")
    others = max(usage.requests, 1) - 1
    spent_each = (usage.input_tokens // (others + 1), usage.output_tokens // (others + 1))
    spent_last = (usage.input_tokens - others * spent_each[0], usage.output_tokens - others * spent_each[1])
    try:
        each, last = (
            float(
                calc_price(
                    Tokens(input_tokens=given, output_tokens=made), name, provider_id=provider
                ).total_price
            )
            for given, made in (spent_each, spent_last)
        )
    except (LookupError, ValueError):
        return None
    return others * each + last
