"""The events of a journal, as `holdfast events` prints them."""

from __future__ import annotations

import pytest

from holdfast.journal.records import Record
from holdfast.views.timeline import tell
from tests.journal.test_encoding import CODEC, SAMPLES


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_every_kind_of_record_has_an_event_or_none(record: Record) -> None:
    event = tell(record, CODEC, "run")

    assert event is None or (event[0] and event[2])
