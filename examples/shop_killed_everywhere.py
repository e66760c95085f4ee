"""An order is paid, approved and shipped. Its crash test kills it at every boundary, and finds the careless code.

Run it: python examples/shop_killed_everywhere.py, or as tests: pytest examples/shop_killed_everywhere.py
"""

from typing import Any, TypedDict

from holdfast import END, START, Context, StateGraph
from holdfast.testing import CrashFailure, RunSeen, crash_everywhere, record_effect


class Order(TypedDict, total=False):
    amount: int
    receipt: str
    approved: str


class FakeGateway:
    """Fake of the payment service: it records its effects, and deduplicates by key as payment services do."""

    def charge(self, amount: int, idempotency_key: str | None = None) -> str:
        record_effect("charge", idempotency_key, amount=amount)
        return f"receipt for {amount}"


gateway = FakeGateway()


def pay_and_ask(state: Any, ctx: Context) -> dict[str, Any]:
    """Careless: when the answer comes, this runs again from its beginning, and pays again."""
    receipt = gateway.charge(state["amount"])
    return {"receipt": receipt, "approved": ctx.ask("Ship it?", name="ship")}


def pay(state: Any, ctx: Context) -> dict[str, Any]:
    """Careful: the service knows the key, and does nothing when it is asked again."""
    return {"receipt": gateway.charge(state["amount"], ctx.idempotency_key)}


def approve(state: Any, ctx: Context) -> dict[str, Any]:
    return {"approved": ctx.ask("Ship it?", name="ship")}


def shop(**nodes: Any) -> StateGraph:
    graph = StateGraph(Order, name="shop")
    for name, function in nodes.items():
        graph.add_node(name, function)
    for source, target in zip((START, *nodes), (*nodes, END), strict=True):
        graph.add_edge(source, target)
    return graph


def paid_once(run: RunSeen) -> bool:
    return sum(effect.facts["amount"] for effect in run.effects) == run["amount"]


def test_an_order_is_paid_once_wherever_the_process_dies() -> None:
    report = crash_everywhere(
        shop(pay=pay, approve=approve), {"amount": 40}, answers={"ship": "yes"}, invariant=paid_once
    )
    print(report)


def test_the_careless_shop_is_caught() -> None:
    try:
        crash_everywhere(shop(pay=pay_and_ask), {"amount": 40}, answers={"ship": "yes"}, mode="fast")
    except CrashFailure as failure:
        print(failure)
    else:
        raise AssertionError("it was not caught")


if __name__ == "__main__":
    test_the_careless_shop_is_caught()
    print()
    test_an_order_is_paid_once_wherever_the_process_dies()
