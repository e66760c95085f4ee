"""A Ctrl+C while a command is being loaded."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.cli.main import loading


def test_an_interrupt_is_held_back_and_not_lost() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), loading():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("the end")

    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_loading_is_told_rather_than_the_interrupt() -> None:
    with pytest.raises(ImportError), loading():
        os.kill(os.getpid(), signal.SIGINT)
        raise ImportError("broken")
