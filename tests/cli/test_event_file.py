"""Events as lines of JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import Event, StoreError
from holdfast.cli.run_files import EventFile, event_file


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_value_is_told_and_the_state_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "events.jsonl"
    with event_file(str(path)) as file:
        odd: Any = {"n": float("nan"), "set": {1}, "bytes": b"\x00", ("a", 1): 2, "state": {"big": 1}}
        file.on_event(Event("pause", "r1", "n", odd, 1.5))
        file.on_event(Event("node.message", "r1", "n", {"message": "line\nbreak \ud800"}))

    first, second = written(path)
    assert first == {
        "type": "pause",
        "timestamp": 1.5,
        "run_id": "r1",
        "node": "n",
        "data": {"n": "nan", "set": [1], "bytes": {"$type": "bytes", "base64": "AA=="}, "('a', 1)": 2},
    }
    assert second["data"]["message"].startswith("line\nbreak ")


def test_a_secret_is_replaced_wherever_it_stands(tmp_path: Path) -> None:
    def scrub(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: scrub(item) for key, item in value.items()}
        return "***" if value == 123456 else str(value).replace("123456", "***")

    path = tmp_path / "events.jsonl"
    with event_file(str(path), scrub) as file:
        file.on_event(Event("node.message", "r1", "n", {"number": 123456, "text": "is 123456"}))

    assert written(path)[0]["data"] == {"number": "***", "text": "is ***"}
    assert "123456" not in path.read_text()


def test_what_others_follow_is_written_with_them_and_at_the_latest_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with event_file(str(path)) as file:
        file.on_event(Event("wave.start", "r1"))
        before = path.read_text()
        file.on_event(Event("node.start", "r1", "n"))
        between = written(path)
        file.on_event(Event("checkpoint.save", "r1"))

    assert before == "" and [event["type"] for event in between] == ["wave.start", "node.start"]
    assert [event["type"] for event in written(path)][-1] == "checkpoint.save"


def test_a_reader_who_left_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    file = EventFile(writing)

    for _ in range(3):
        file.on_event(Event("node.start", "r1", "n"))
    os.close(writing)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(StoreError, match="choose another file"), event_file(str(tmp_path / "plain" / "x")):
        pass
