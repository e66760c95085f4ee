"""`Retry`: which failures are tried again, and when."""

from __future__ import annotations

import datetime as dt

import pytest

from holdfast import HoldfastError, Retry


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (Retry(attempts=1), [None]),
        (Retry(attempts=4, delay=1), [1.0, 2.0, 4.0, None]),
        (Retry(attempts=4, delay=1, backoff="fixed"), [1.0, 1.0, 1.0, None]),
        (Retry(attempts=4, delay=10, max_delay=15), [10.0, 15.0, 15.0, None]),
        (Retry(attempts=3, delay=dt.timedelta(seconds=3)), [3.0, 6.0, None]),
        (Retry(attempts=3, delay=0), [0.0, 0.0, None]),
    ],
)
def test_the_wait_before_each_attempt(retry: Retry, delays: list[float | None]) -> None:
    assert [retry.delay_after(tried, ValueError()) for tried in range(1, len(delays) + 1)] == delays


def test_a_huge_number_of_attempts_does_not_overflow() -> None:
    assert Retry(attempts=10**6, delay=1).delay_after(10**5, ValueError()) == 60.0


@pytest.mark.parametrize(
    ("on", "error", "again"),
    [
        (Exception, ValueError(), True),
        (KeyError, ValueError(), False),
        ((KeyError, ValueError), ValueError(), True),
        (OSError, ConnectionError(), True),
        (lambda error: "429" in str(error), ValueError("429 slow down"), True),
        (lambda error: "429" in str(error), ValueError("401"), False),
        (Exception, KeyboardInterrupt(), False),
    ],
)
def test_only_the_failures_that_were_named_are_tried_again(
    on: object, error: BaseException, again: bool
) -> None:
    assert (Retry(on=on).delay_after(1, error) is not None) is again  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        {"attempts": 0},
        {"delay": -1},
        {"max_delay": -1},
        {"backoff": "linear"},
        {"on": "x"},
        {"attempts": "3"},
    ],
)
def test_a_retry_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(HoldfastError, match="Retry: "):
        Retry(**bad)  # type: ignore[arg-type]
