"""What a run saves of its workflow's files, and going on with it where they are gone or are others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast import HoldfastError, load_workflow, open_store
from holdfast.cli.main import main
from holdfast.workflows import WorkflowInvalid
from holdfast.workflows import workflow as files
from holdfast.workflows.workflow import workflow_of_run

OUTER = """
workflow: {name: outer}
steps:
  - {name: begin, set: {who: outer}}
  - {name: mid, workflow: parts/mid.yaml, with: {word: "{{ steps.begin.output.who }}"}}
  - name: both
    parallel:
      - {name: one, workflow: shared/leaf.yaml, with: {word: one}}
      - {name: two, set: {n: 2}}
output: {mid: "{{ steps.mid.output }}", one: "{{ steps.one.output }}"}
"""
MID = """
workflow: {name: mid, inputs: {word: {required: true}}}
steps:
  - {name: ask, ask: {prompt: "Go on?", choices: ["yes", "no"]}}
  - {name: leaf, workflow: {file: ../shared/leaf.yaml}, with: {word: "{{ inputs.word }}"}}
output: "{{ steps.leaf.output }}"
"""
LEAF = """
workflow: {name: leaf, inputs: {word: {required: true}}}
steps:
  - {name: say, set: {text: !file texts/greeting.txt, word: "{{ inputs.word }}"}}
output: "{{ steps.say.output.text }}, {{ steps.say.output.word }}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workflow with sub-workflows on two levels, one of them used twice."""
    texts = {
        "flow.yaml": OUTER,
        "parts/mid.yaml": MID,
        "shared/leaf.yaml": LEAF,
        "shared/texts/greeting.txt": "hello",
    }
    for name, text in texts.items():
        path = tmp_path / "flows" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "flows"


def stored(folder: Path, url: str) -> dict[str, Any]:
    """The config of a run that waits in the middle, as the journal has it."""
    flow = load_workflow(folder / "flow.yaml")
    config = flow.config()
    assert flow.open(url).invoke(flow.begin({}), run_id="r", config=config).status == "paused"
    return json.loads(json.dumps(config))  # type: ignore[no-any-return]


def finished(config: dict[str, Any], url: str, **options: Any) -> Any:
    flow = workflow_of_run(config, **options)
    outcome = flow.open(url).resume("r", answer="yes")
    assert outcome.status == "completed"
    return flow.output(outcome.state)


def test_a_run_saves_every_file_once_by_its_path_from_the_workflow(folder: Path) -> None:
    saved = load_workflow(folder / "flow.yaml").config()["workflow_file"]["files"]

    assert saved == {
        "parts/mid.yaml": {"source": MID, "included": {}},
        "shared/leaf.yaml": {"source": LEAF, "included": {"texts/greeting.txt": "hello"}},
    }
    assert load_workflow(folder / "shared" / "leaf.yaml").config()["workflow_file"]["files"] == {}


def test_a_run_goes_on_where_the_whole_folder_is_gone(folder: Path, sqlite_url: str) -> None:
    config = stored(folder, sqlite_url)
    shutil.rmtree(folder)

    assert finished(config, sqlite_url) == {"mid": "hello, outer", "one": "hello, one"}


def test_the_command_line_goes_on_by_the_run_s_id_alone(
    folder: Path, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(folder / "flow.yaml"), "--run-id", "r", "--store", sqlite_url, "--json"]) == 4
    shutil.rmtree(folder)
    capsys.readouterr()

    code = main(["resume", "r", "--answer", "yes", "--store", sqlite_url, "--json"])

    assert code == 0
    assert json.loads(capsys.readouterr().out)["output"] == {"mid": "hello, outer", "one": "hello, one"}


def test_files_that_are_there_are_taken_as_they_are_now(folder: Path, sqlite_url: str) -> None:
    config = stored(folder, sqlite_url)
    (folder / "shared" / "texts" / "greeting.txt").write_text("good day")
    (folder / "flow.yaml").unlink()
    (folder / "parts" / "mid.yaml").unlink()

    assert finished(config, sqlite_url) == {"mid": "good day, outer", "one": "good day, one"}


def test_on_another_machine_unrelated_files_of_the_same_paths_are_left_alone(
    folder: Path, sqlite_url: str
) -> None:
    config = stored(folder, sqlite_url)
    for file in folder.rglob("*.*"):
        file.write_text("workflow: {name: unrelated}\nsteps: [{name: other, set: {}}]\n")

    with pytest.raises(HoldfastError, match="unrelated"):
        finished(config, sqlite_url)
    assert finished(config, sqlite_url, prefer="saved") == {"mid": "hello, outer", "one": "hello, one"}


def test_what_was_resumed_from_its_saved_files_saves_them_again(folder: Path, sqlite_url: str) -> None:
    config = stored(folder, sqlite_url)
    shutil.rmtree(folder)

    again = workflow_of_run(config).config()

    assert again["workflow_file"] == config["workflow_file"]


def test_a_run_that_saved_no_sub_workflows_looks_for_them_on_disk_only_if_files_are_preferred(
    folder: Path, sqlite_url: str
) -> None:
    config = stored(folder, sqlite_url)
    del config["workflow_file"]["files"]

    assert workflow_of_run(config).open("memory://")
    with pytest.raises(WorkflowInvalid, match=r"there is no workflow file 'parts/mid\.yaml'"):
        workflow_of_run(config, prefer="saved")


def test_too_much_to_keep_is_told_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = len(MID) + len(LEAF) + len("hello")
    monkeypatch.setattr(files, "MAX_BYTES", size)
    load_workflow(folder / "flow.yaml").config()
    monkeypatch.setattr(files, "MAX_BYTES", size - 1)

    with pytest.raises(WorkflowInvalid, match=f"sub-workflows have {size} bytes; every run keeps a copy"):
        load_workflow(folder / "flow.yaml").config()
    assert main(["validate", str(folder / "flow.yaml")]) == 2
    assert "shared/leaf.yaml" in capsys.readouterr().out


def test_what_is_preferred_is_one_of_two() -> None:
    with pytest.raises(HoldfastError, match="prefer must be 'file' or 'saved', not 'newest'"):
        workflow_of_run({"workflow_file": {"path": "x.yaml", "source": ""}}, prefer="newest")


def test_nothing_saved_is_written_to_disk(folder: Path, sqlite_url: str) -> None:
    config = stored(folder, sqlite_url)
    shutil.rmtree(folder)
    finished(config, sqlite_url)

    assert not folder.exists()
    store = open_store(sqlite_url)
    assert len(store.runs()) == 1
    store.close()
