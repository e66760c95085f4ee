"""An agent writes a DAG, replans it after a failure, and a person approves the payment: three processes, one run.

Run it: python examples/dag_replanned.py
"""

import logging
import tempfile
from typing import Any

from holdfast.dags import ControlledExecutor, DecisionPoint, Tools

paid: list[int] = []
"""Every payment that was made, recorded outside Holdfast."""


def make_tools() -> Tools:
    tools = Tools()

    @tools.tool
    def look_up_price(item: str) -> int:
        if item == "rare book":
            raise LookupError("the shop is closed")
        return {"book": 30, "map": 12}[item]

    @tools.tool
    def add_up(prices: list[int]) -> int:
        return sum(prices)

    @tools.tool(critical=True, idempotent=False)
    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    return tools


PLAN = {
    "tasks": [
        {"id": "map", "tool": "look_up_price", "arguments": {"item": "map"}},
        {"id": "rare", "tool": "look_up_price", "arguments": {"item": "rare book"}},
        {
            "id": "sum",
            "tool": "add_up",
            "arguments": {"prices": [{"$ref": "tasks.map.result"}, {"$ref": "tasks.rare.result"}]},
            "depends_on": ["map", "rare"],
        },
        {
            "id": "pay",
            "tool": "pay",
            "arguments": {"amount": {"$ref": "tasks.sum.result"}},
            "depends_on": ["sum"],
        },
    ]
}
"""What the agent planned first. In practice a language model writes it."""


def agent(point: DecisionPoint) -> dict[str, Any]:
    """Take an ordinary book instead of the rare one: the failed task runs again, otherwise."""
    instead = {"id": "rare", "tool": "look_up_price", "arguments": {"item": "book"}}
    return {"action": "replan", "tasks": [instead, *point.remaining], "reason": point.errors[0]["error"]}


def open_executor(folder: str, **options: Any) -> ControlledExecutor:
    """Return a new executor, as a new process would make one."""
    return ControlledExecutor(make_tools(), f"sqlite:///{folder}/runs.db", name="shopping", **options)


def main() -> None:
    logging.disable(logging.WARNING)  # The failure is expected.
    with tempfile.TemporaryDirectory() as folder:
        first = open_executor(folder, decide=agent)
        result = first.execute(PLAN, run_id="shopping-1")
        print(f"The agent replanned: {result.decisions[0]['reason']}.")
        print(f"The run waits: {result.pauses[0].prompt}")
        first.app.store.close()

        second = open_executor(folder, approval="never")
        assert second.resume("shopping-1").status == "paused", "no other executor bypasses the approval"
        second.approve("shopping-1", by="ana", reason="within budget")
        second.app.store.close()
        assert paid == []

        third = open_executor(folder)
        result = third.resume("shopping-1")
        third.app.store.close()
    who = [f"{each['kind']} {each['action']} by {each['by']}" for each in result.decisions]
    print(f"{result.status}: {result.results['pay']['result']}; {', '.join(who)}.")
    assert paid == [42] and result.failed_tasks == 0


if __name__ == "__main__":
    main()
