"""What a power cut leaves of a store is opened, verified and resumed; the model of the disk is as harsh as it says."""

from __future__ import annotations

import random

import pytest

from tests.invariants import Line
from tests.proof.power.disk import moments
from tests.proof.power.images import MODELS, images
from tests.proof.power.recording import Happening, Heard, Made, Moved, Recording, Sized, Synced, Wrote
from tests.proof.programs import proof

ROOT, FILE, FRESH = 1, 2, 3
OLD, NEW = b"o" * 700, b"n" * 700


@pytest.mark.parametrize(
    ("scene", "store", "durability", "stride"),
    [
        ("once", "sqlite", "full", 10),
        ("housekeeping", "file", "full", 18),
        ("housekeeping", "file", "process", 25),
    ],
)
def test_whatever_a_power_cut_leaves_has_all_that_was_acknowledged(
    scene: str, store: str, durability: str, stride: int
) -> None:
    """S0.9, S1.3: a few points here; `python -m tests.proof.power_cuts --full` takes all of six scenes."""
    where = ("--scene", scene, "--store", store, "--durability", durability, "--sector", "512")

    counts = proof("power_cuts", *where, "--stride", str(stride), "--images", "1", "--jobs", "1")

    assert counts["images"] > 50 and counts["resumed"]
    assert counts["violations"] == 0


def left(model: str, *happenings: Happening) -> list[dict[str, bytes]]:
    """What a power cut after these leaves, each once."""
    *_, disk = moments(Recording(ROOT, list(happenings)))
    found = [image.files for image in images(disk, model, 512, 8, random.Random(0))]
    return [files for place, files in enumerate(found) if files not in found[:place]]


CREATED = (Made(ROOT, "f", FILE, False), Wrote(FILE, 0, OLD))
SYNCED = (*CREATED, Synced(FILE, 2), Synced(ROOT, 2))


@pytest.mark.parametrize("model", MODELS)
def test_what_was_synced_is_there(model: str) -> None:
    assert left(model, *SYNCED) in ([{"f": OLD}], [])
    assert {"f": OLD} in left("arbitrary", *SYNCED)


def test_a_file_without_a_synced_name_may_be_gone() -> None:
    """In the order of a journalling file system the sync of a new file takes its name along."""
    assert {} in left("arbitrary", *CREATED, Synced(FILE, 2))
    assert left("ordered", *CREATED, Synced(FILE, 2)) == [{"f": OLD}]


def test_a_synced_name_may_lead_to_nothing() -> None:
    assert {"f": b""} in left("arbitrary", *CREATED, Synced(ROOT, 2))


def test_sectors_that_were_not_synced_come_in_any_order() -> None:
    found = left("arbitrary", *SYNCED, Wrote(FILE, 0, NEW))

    assert {files["f"] for files in found} == {
        begin + end for begin in (OLD[:512], NEW[:512]) for end in (OLD[512:], NEW[512:])
    }


def test_a_file_may_have_grown_before_its_data_came() -> None:
    found = [files["f"] for files in left("arbitrary", *SYNCED, Wrote(FILE, 700, NEW))]

    assert OLD in found and OLD + NEW in found
    assert any(content[:700] == OLD and content[1024:] == bytes(376) for content in found)
    assert all(content[:700] == OLD for content in found)


def test_a_sector_may_be_torn_and_a_grown_one_stale() -> None:
    torn = [files["f"] for files in left("torn", *SYNCED, Wrote(FILE, 0, NEW))]
    stale = [files["f"] for files in left("stale", *SYNCED, Wrote(FILE, 1024, NEW))]

    assert any(content[0:1] == b"n" and content[511:512] == b"o" for content in torn)
    assert any(len(content) == 1724 and any(content[1024:]) and NEW not in content for content in stale)


def test_a_write_that_came_while_a_sync_was_under_way_may_be_lost() -> None:
    """The sync was asked for after two things had happened."""
    found = left("arbitrary", *CREATED, Wrote(FILE, 0, NEW), Synced(FILE, 2), Synced(ROOT, 3))

    assert {"f": OLD} in found and {"f": NEW} in found


def test_a_rename_replaces_all_or_nothing_and_may_be_lost() -> None:
    fresh = (Made(ROOT, "g", FRESH, False), Wrote(FRESH, 0, NEW), Synced(FRESH, 6))
    found = left("arbitrary", *SYNCED, *fresh, Moved(ROOT, "g", ROOT, "f", FRESH))

    assert {files["f"] for files in found} == {OLD, NEW}
    assert {"f": OLD} in found and {"f": NEW} in found


def test_a_rename_before_the_sync_of_its_file_may_leave_an_empty_one() -> None:
    fresh = (Made(ROOT, "g", FRESH, False), Wrote(FRESH, 0, NEW), Moved(ROOT, "g", ROOT, "f", FRESH))

    assert {"f": b""} in left("arbitrary", *SYNCED, *fresh, Synced(ROOT, 7))


def test_in_the_order_of_a_journal_a_later_change_never_comes_without_the_earlier_ones() -> None:
    later = (Wrote(FILE, 700, NEW), Made(ROOT, "g", FRESH, False))
    found = left("ordered", *SYNCED, *later)

    assert {"f": OLD, "g": b""} not in found and {"f": OLD + NEW, "g": b""} in found


def test_a_file_that_was_cut_may_still_be_long() -> None:
    found = left("arbitrary", *SYNCED, Sized(FILE, 10))

    assert {"f": OLD} in found and {"f": OLD[:10]} in found


def test_a_moment_knows_what_the_outside_was_told_by_then() -> None:
    line = Line("stored", "r:1", "00")

    disks = [len(disk.lines) for disk in moments(Recording(ROOT, [*CREATED, Heard(line)]))]

    assert disks == [0, 0, 1]
