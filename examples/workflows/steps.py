"""Steps of the example workflows. Each writes its idempotency key to the file that EXAMPLE_LEDGER names, if any."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def note(ctx: Any) -> None:
    """Record in the ledger that a step runs."""
    ledger = os.environ.get("EXAMPLE_LEDGER")
    if ledger:
        with Path(ledger).open("a") as file:
            file.write(ctx.idempotency_key + "\n")
    time.sleep(0.03)


def draft(inputs: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Return a first draft."""
    note(ctx)
    return {"text": f"Notes on {inputs['topic']}."}


def improve(text: str, round: int, ctx: Any) -> dict[str, Any]:
    """Return the text with one more paragraph, and a critic's verdict."""
    note(ctx)
    better = f"{text} Paragraph {round} makes it better."
    return {"text": better, "score": len(better.split())}


def publish(text: str, ctx: Any) -> dict[str, Any]:
    """Return the address of the published text."""
    note(ctx)
    return {"title": text.split(".")[0], "words": len(text.split())}


def numbers(name: str, ctx: Any) -> list[int]:
    """Return the numbers of a department."""
    note(ctx)
    return [len(name) * month for month in range(1, 7)]


def add_up(values: list[int], ctx: Any) -> int:
    """Return their sum."""
    note(ctx)
    return sum(values)


def weather(ctx: Any) -> None:
    """Raise an error: the service is down, and no step depends on it."""
    note(ctx)
    raise ConnectionError("the weather service is down")


def list_orders(count: int, ctx: Any) -> list[dict[str, Any]]:
    """Return some orders."""
    note(ctx)
    return [{"id": f"order-{number}", "amount": 10 * number} for number in range(1, count + 1)]


def invoice(order: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Return the invoice of one order; raise for one of the orders."""
    note(ctx)
    if order["amount"] == 30:
        raise ValueError("the address is missing")
    return {"order": order["id"], "total": round(order["amount"] * 1.2, 2)}
