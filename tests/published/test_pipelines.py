"""Published figures of pipelines; what a simulation of the schedules has to reproduce is in ``pipelines.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dlpar.costmodel.pipeline import bubble

TABLE = tomllib.loads(Path(__file__).with_name("pipelines.toml").read_text())


@pytest.mark.parametrize("case", TABLE["megatron"]["cases"], ids=str)
def test_the_closed_form_is_megatron_s(case):
    p, m, v = case["p"], case["m"], case["v"]
    schedule = "1f1b" if v == 1 else "interleaved"
    assert bubble(schedule, p, m, v) == (p - 1) / (v * m)


@pytest.mark.parametrize("stages, published", TABLE["gpipe"]["speed_up"].items())
def test_gpipe_s_speed_ups_are_below_what_the_bubble_allows(stages, published):
    p, m = int(stages), TABLE["gpipe"]["micro_batches"]
    assert published < p / (1 + bubble("gpipe", p, m))
