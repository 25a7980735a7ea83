"""The names of the lab: every one loads, and importing the lab alone loads nothing heavy."""

import subprocess
import sys

import pytest

from dlpar import lab
from dlpar.lab import figures


@pytest.mark.parametrize("name", lab.__all__)
def test_every_name_loads(name):
    assert getattr(lab, name) is not None and name in dir(lab)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        lab.nothing  # noqa: B018 - the access is what is tested


def test_importing_the_lab_loads_nothing_heavy():
    code = "import sys, dlpar.lab; print({'torch', 'pandas', 'plotly', 'ipywidgets'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


ONE = ("pipeline", "first_at", "staleness", "lead", "lanes", "timeline")
"""Figures of one run, in a list or not."""

EXPERIMENTS = ("pieces", "layer_bytes", "mesh", "show_graph", "sending")
OUTCOMES = ("exposed", "bucket_sizes", "collective_times")
RUNS = ("memory", "micro_batches", "overlay", "throughput", "waiting", "consensus", "convergence", "speedup")


@pytest.mark.parametrize("got", ["20261130-151622", None, 3])
@pytest.mark.parametrize("name", [*ONE, *EXPERIMENTS, *OUTCOMES, *RUNS, "time_to_accuracy", "scaling"])
def test_a_figure_of_something_else_is_refused_in_a_sentence(name, got):
    draw = lab.scaling if name == "scaling" else getattr(figures, name)
    allowed = r"an Experiment or a Run" if name in EXPERIMENTS else r"one \w+ or several"
    with pytest.raises(ValueError, match=rf"^\w+: got {got!r}, allowed is {allowed}$"):
        draw(got, 0.9) if name == "first_at" else draw(got)
