"""The kinds of steps that need nothing but the state: set, wait, end, checkpoint."""

from __future__ import annotations

import datetime as dt
import pickle
import time
from pathlib import Path

import pytest

from holdfast.errors import ExecutionError
from holdfast.journal.records import Noted
from holdfast.values import RunStatus
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.scope import EndedInFailure
from tests.workflows.workshop import Workshop


def test_set_keeps_types_and_fills_in_templates(shop: Workshop) -> None:
    found = shop.step(
        """
        workflow:
          name: test
          inputs: {n: {type: integer, default: 3}, list: {type: array, default: [1, 2]}}
          vars: {unit: km}
        steps:
          - name: x
            set:
              number: "{{ inputs.n + 1 }}"
              list: "{{ inputs.list }}"
              text: "{{ inputs.n }} {{ vars.unit }} in {{ workflow.name }}"
              deep: {inner: ["{{ inputs.n }}", true, null, 1.5]}
        """
    )

    assert found["status"] == "completed"
    assert found["output"] == {
        "number": 4,
        "list": [1, 2],
        "text": "3 km in test",
        "deep": {"inner": [3, True, None, 1.5]},
    }


def test_set_without_templates_gives_every_visit_the_same_value(shop: Workshop) -> None:
    outcome = shop.run(
        """
        steps:
          - name: x
            set: {list: [1]}
          - name: y
            python: steps.py:say
            with: {word: a}
            routes: [{to: x, when: "visits.x < 3"}, {to: $end}]
        """
    )

    assert outcome.state["x"] == {"status": "completed", "output": {"list": [1]}, "visits": 3}


def test_a_template_that_cannot_be_filled_names_the_step_and_the_field(shop: Workshop) -> None:
    told = shop.error(
        """
        steps:
          - {name: a, set: {n: 1}}
          - {name: x, set: {deep: [1, {wrong: "{{ steps.a.output.m }}"}]}}
        """
    )

    assert "'x'" in told and "set.deep.1.wrong" in told
    assert "there is no 'm' in steps.a.output; it has 'n'" in told


def test_wait_for_a_moment(shop: Workshop) -> None:
    begun = time.monotonic()
    assert shop.step("steps: [{name: x, wait: 150ms}]")["status"] == "completed"
    assert time.monotonic() - begun >= 0.15


def test_wait_until_a_moment_that_is_past_waits_not_at_all(shop: Workshop) -> None:
    past = (dt.datetime.now(dt.UTC) - dt.timedelta(days=1)).isoformat()

    assert shop.step(f"steps: [{{name: x, wait: {{until: '{past}'}}}}]")["status"] == "completed"


def test_wait_until_a_moment_to_come(shop: Workshop) -> None:
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.3)
    text = """
        workflow:
          name: test
          inputs: {then: {}}
        steps: [{name: x, wait: {until: "{{ inputs.then }}"}}]
        """

    shop.run(text, {"then": moment.isoformat()})

    assert dt.datetime.now(dt.UTC) >= moment


def test_wait_until_something_that_is_no_moment(shop: Workshop) -> None:
    text = """
        workflow:
          name: test
          inputs: {then: {default: tomorrow}}
        steps: [{name: x, wait: {until: "{{ inputs.then }}"}}]
        """

    told = shop.error(text)

    assert "wait.until" in told and "'tomorrow' is no date and time" in told


def test_a_wait_that_was_interrupted_does_not_begin_anew(shop: Workshop) -> None:
    app = shop.open("steps: [{name: x, wait: 2s}]")
    journal, codec = app._settings.journal, app._settings.codec

    def notes() -> list[bytes]:
        if not app.store.runs(run="r"):
            return []
        _, history = journal.history(journal.info("r"), codec)
        return [record.value for _, records in history for record in records if isinstance(record, Noted)]

    process = shop.start()
    while not notes():
        time.sleep(0.05)
    process.kill()
    process.wait()

    assert app.resume("r").status == RunStatus.COMPLETED
    (until,) = notes()
    assert time.time() >= codec.decode(until)


def test_end_ends_the_run_before_what_follows(shop: Workshop) -> None:
    outcome = shop.run(
        """
        steps:
          - {name: first, set: {n: 1}, routes: [{to: enough, when: "output.n == 1"}, {to: never}]}
          - {name: enough, end: {reason: "{{ steps.first.output.n }} is enough"}}
          - {name: never, python: "steps.py:say", with: {word: never}}
        """
    )

    assert outcome.status == RunStatus.COMPLETED
    assert outcome.state["enough"]["output"] == "1 is enough"
    assert shop.calls() == []


def test_end_in_failure_fails_the_run_with_its_reason(shop: Workshop) -> None:
    text = """
        workflow:
          name: test
          vars: {done: found}
        steps: [{name: x, end: {status: failure, reason: "nothing was {{ vars.done }}"}}]
        """

    with pytest.raises(ExecutionError, match="nothing was found") as caught:
        shop.run(text)

    assert isinstance(caught.value.cause, EndedInFailure)
    assert caught.value.node == "x"


def test_a_checkpoint_file_is_written_beside_the_workflow_and_read_again(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    outcome = shop.run(
        """
        steps:
          - {name: a, set: {n: 1}}
          - {name: save, checkpoint: {save: "saved/{{ workflow.run_id }}.pkl"}}
          - {name: x, checkpoint: {load: "{{ steps.save.output.checkpoint_path }}"}}
        """
    )

    assert outcome.state["save"]["output"] == {
        "checkpoint_path": str(shop.folder / "saved/r.pkl"),
        "saved": True,
    }
    loaded = outcome.state["x"]["output"]
    assert loaded["checkpoint_node"] == "save"
    assert loaded["checkpoint_state"]["a"]["output"] == {"n": 1}


def test_a_checkpoint_file_that_is_not_there_or_not_one(shop: Workshop) -> None:
    assert "checkpoint file not found" in shop.error("steps: [{name: x, checkpoint: {load: nothing.pkl}}]")
    Path(shop.folder / "junk.pkl").write_bytes(b"cos\nsystem\n(S'touch broken'\ntR.")

    app = shop.open("steps: [{name: x, checkpoint: {load: junk.pkl}}]")
    with pytest.raises(ExecutionError, match="refused"):
        app.invoke({"inputs": {}})
    assert not (shop.folder / "broken").exists()


@pytest.mark.parametrize(
    "path", ["../x.pkl", "OUT/x.pkl", "link/x.pkl", "link.pkl", "HERE/../x.pkl", "~/x.pkl"]
)
@pytest.mark.parametrize("verb", ["save", "load"])
def test_a_checkpoint_file_is_in_the_folder_of_the_workflow(
    shop: Workshop, tmp_path_factory: pytest.TempPathFactory, verb: str, path: str
) -> None:
    out = tmp_path_factory.mktemp("out")
    (shop.folder / "link").symlink_to(out)
    (shop.folder / "link.pkl").symlink_to(out / "x.pkl")
    given = path.replace("OUT", str(out)).replace("HERE", str(shop.folder))
    text = f"  inputs: {{p: {{}}}}\nsteps: [{{name: x, checkpoint: {{{verb}: '{{{{ inputs.p }}}}'}}}}]"

    error = shop.error(text, {"p": given})

    assert f"checkpoint.{verb}" in error and "workflow file's folder" in error and "outside: true" in error
    assert not [*out.iterdir()] and not (shop.folder.parent / "x.pkl").exists()
    if not path.startswith("link"):
        with pytest.raises(WorkflowInvalid, match="workflow file's folder"):
            shop.load(f"steps: [{{name: x, checkpoint: {{{verb}: '{given}'}}}}]")


def test_a_checkpoint_file_may_be_outside_if_the_step_says_so(
    shop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("out") / "made/x.pkl"
    outcome = shop.run(
        f"""
        steps:
          - {{name: save, checkpoint: {{save: {path}, outside: true}}}}
          - {{name: x, checkpoint: {{load: {path}, outside: true}}}}
        """
    )

    assert path.is_file() and outcome.state["x"]["output"]["checkpoint_node"] == "save"


def test_only_a_checkpoint_file_is_replaced_by_one(shop: Workshop) -> None:
    text = "steps: [{name: a, set: {n: %s}}, {name: x, checkpoint: {save: x.pkl}}]"
    for size in (1, 100_000, 2):
        shop.open(text % f"'{'y' * size}'").invoke({"inputs": {}})
        assert (len((shop.folder / "x.pkl").read_bytes()) > 100_000) == (size == 100_000)
    (shop.folder / "x.pkl").write_bytes(pickle.dumps({"model": "trained for weeks"}))

    error = shop.error(text % 1)

    assert "checkpoint.save: 'x.pkl'" in error and "no checkpoint file" in error
    assert pickle.loads((shop.folder / "x.pkl").read_bytes()) == {"model": "trained for weeks"}


def test_a_run_can_begin_from_a_checkpoint_file_of_a_step(shop: Workshop) -> None:
    text = """
        steps:
          - {name: a, python: "steps.py:say", with: {word: a}}
          - {name: save, checkpoint: {save: saved.pkl}}
          - {name: b, python: "steps.py:say", with: {word: "{{ steps.a.output }}b"}}
        """
    shop.run(text)

    again = shop.resume(target=str(shop.folder / "saved.pkl"))

    assert again.status == RunStatus.COMPLETED and again.run_id != "r"
    assert shop.calls() == ["a", "ab", "ab"]
