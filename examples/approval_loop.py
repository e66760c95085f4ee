"""A draft goes to a reviewer until it is approved; while the run waits, it is stored.

Run it: python examples/approval_loop.py
"""

import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from holdfast import END, START, AnswerRejected, App, Context, StateGraph, append

REVIEWS = ["Shorter, please.", "Now the title is dull.", "approved"]
"""The answers of the reviewer. In practice they come days apart, through a web form."""


class Article(TypedDict, total=False):
    draft: str
    verdict: str
    remarks: Annotated[list[str], append]


written: list[str] = []
"""Every draft that was written, recorded outside Holdfast."""


def write(state: Any) -> dict[str, Any]:
    draft = f"draft {len(state['remarks']) + 1}"
    written.append(draft)
    return {"draft": draft}


def review(state: Any, ctx: Context) -> dict[str, Any]:
    verdict = ctx.ask(
        f"What about {state['draft']!r}?", name="review", schema={"type": "string", "minLength": 1}
    )
    return {"verdict": verdict} if verdict == "approved" else {"verdict": verdict, "remarks": [verdict]}


def publish(state: Any) -> dict[str, Any]:
    return {"draft": state["draft"].replace("draft", "final")}


def compile_on(folder: str) -> App:
    """Return a new app, as a new process would make one."""
    graph = StateGraph(Article, name="article")
    graph.add_node("write", write)
    graph.add_node("review", review)
    graph.add_node("publish", publish)
    graph.add_edge(START, "write")
    graph.add_edge("write", "review")
    graph.add_edge("review", "publish", when=lambda state: state["verdict"] == "approved")
    graph.add_edge("review", "write")
    graph.add_edge("publish", END)
    return graph.compile(store=Path(folder) / "runs.db")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = compile_on(folder)
        out = app.invoke(run_id="article-1")
        for answer in REVIEWS:
            assert out.status == "paused" and len(out.pauses) == 1
            print(f"The run waits: {out.pauses[0].prompt}")
            app.store.close()
            app = compile_on(folder)
            try:
                app.resume("article-1", answer="")
            except AnswerRejected as error:
                print(f"  an empty answer is refused: {error}")
            print(f"  the reviewer answers: {answer}")
            out = app.resume("article-1", answer=answer)
        app.store.close()
    print(f"{out.status}: {out.state['draft']!r} after {len(out.state['remarks'])} remarks.")
    assert out.status == "completed"
    assert written == ["draft 1", "draft 2", "draft 3"], "each draft is written once, whatever the pauses"
    assert out.state["draft"] == "final 3"
    assert list(out.state["remarks"]) == REVIEWS[:2]


if __name__ == "__main__":
    main()
