"""What the example workflows do. Every step notes its idempotency key in the file that EXAMPLE_LEDGER names, if any."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def note(ctx: Any) -> None:
    """Write down that a step is at work, where everybody can see it."""
    ledger = os.environ.get("EXAMPLE_LEDGER")
    if ledger:
        with Path(ledger).open("a") as file:
            file.write(ctx.idempotency_key + "\n")
    time.sleep(0.03)


def draft(inputs: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A first draft."""
    note(ctx)
    return {"text": f"Notes on {inputs['topic']}."}


def improve(text: str, round: int, ctx: Any) -> dict[str, Any]:
    """The text with one more paragraph, and what a critic would say of it."""
    note(ctx)
    better = f"{text} Paragraph {round} makes it better."
    return {"text": better, "score": len(better.split())}


def publish(text: str, ctx: Any) -> dict[str, Any]:
    """Where the text can be read now."""
    note(ctx)
    return {"title": text.split(".")[0], "words": len(text.split())}


def numbers(name: str, ctx: Any) -> list[int]:
    """The numbers of a department."""
    note(ctx)
    return [len(name) * month for month in range(1, 7)]


def add_up(values: list[int], ctx: Any) -> int:
    """Their sum."""
    note(ctx)
    return sum(values)


def weather(ctx: Any) -> None:
    """A service that is never there: nobody depends on it."""
    note(ctx)
    raise ConnectionError("the weather service is down")


def list_orders(count: int, ctx: Any) -> list[dict[str, Any]]:
    """Some orders."""
    note(ctx)
    return [{"id": f"order-{number}", "amount": 10 * number} for number in range(1, count + 1)]


def invoice(order: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """The invoice of one order; one of them cannot be made."""
    note(ctx)
    if order["amount"] == 30:
        raise ValueError("the address is missing")
    return {"order": order["id"], "total": round(order["amount"] * 1.2, 2)}
