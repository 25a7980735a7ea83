"""A rank's result is data: nothing in it runs where an answer is judged."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from dlpar.classroom.grading.cells import packed
from dlpar.classroom.grading.judge import read_result


def test_results_of_ranks_are_read_without_running_anything() -> None:
    import numpy as np
    import torch

    good = [{"a": (1, 2.5, "x", None, {3})}, torch.arange(6.0).view(2, 3), np.arange(3), np.float64(2), 1j]
    same = read_result(packed(good))
    assert same[0] == good[0] and torch.equal(same[1], good[1])
    assert same[2].tolist() == [0, 1, 2] and same[3:] == [2, 1j]
    for bad in (os.system, Path("/"), exec):
        for body in (packed(bad), pickle.dumps(bad)):
            with pytest.raises(ValueError, match="allowed are numbers"):
                read_result(body)
    for body in (b"no pickle", b"PK\x03\x04 and no more"):
        with pytest.raises((ValueError, RuntimeError)):
            read_result(body)
