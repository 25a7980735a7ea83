"""A scheme, a topology, a codec, a schedule and a platform come from outside the package, each in one file.

``$DLPAR_PLUGINS`` tells a job's processes which modules to import.  Each runs as a job in the simulated world.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Union

import pytest

import dlpar
from dlpar import BadExperiment, Experiment, config, graphs
from dlpar.compression import codecs
from dlpar.split import schedules

PLUGINS = Path(__file__).with_name("plugins")
SMALL = {"steps": 12, "batch": 24, "model": {"width": 16}, "dtype": "float64", "evaluate_every": 0}


TABLES = (
    config.sync.SCHEMES, config.sync.TOPOLOGIES, config.parts.CODECS, config.split.SCHEDULES,
    graphs.TOPOLOGIES, codecs.CODECS, schedules.SCHEDULES,
)  # fmt: skip
"""What plug-ins add to."""


@pytest.fixture
def plugin(monkeypatch):
    """Have a plug-in known here, and to the processes of a job, until the test ends."""
    before, names = [table.copy() for table in TABLES], []

    def known(name: str) -> None:
        monkeypatch.syspath_prepend(str(PLUGINS))
        monkeypatch.setenv("PYTHONPATH", str(PLUGINS), prepend=":")
        monkeypatch.setenv("DLPAR_PLUGINS", name)
        importlib.import_module(name)
        names.append(name)

    yield known
    for name in names:
        sys.modules.pop(name)
    for table, usual in zip(TABLES, before):
        if table != usual:
            table.clear()
            table.update(usual) if isinstance(table, dict) else table.extend(usual)
    Experiment.model_fields["sync"].annotation = Union[tuple(config.sync.SCHEMES)]  # noqa: UP007
    Experiment.model_rebuild(force=True)


def losses(**fields):
    """Loss of every step of a simulated job."""
    fields = {**SMALL, **fields}
    cluster = {"world": "simulated", **fields.pop("cluster", {})}
    return dlpar.launch(Experiment(cluster=cluster, **fields)).wait(60).curve["loss"].to_numpy()


def test_a_scheme_from_outside_trains_what_a_ring_trains(plugin):
    plugin("relay")
    assert losses(sync="relay") == pytest.approx(losses(sync="ring"), rel=1e-9)
    refused = "averaging.method: got 'local', allowed with sync relay is none: its line sums gradients alone"
    with pytest.raises(BadExperiment, match=refused):
        Experiment(sync="relay", averaging="local")


def test_a_topology_from_outside_is_averaged_over(plugin):
    plugin("chords")
    fields = {"workers": 4, "scaling": "weak", "batch": 8}
    complete = losses(sync={"scheme": "gossip", "topology": "complete"}, **fields)
    assert losses(sync={"scheme": "gossip", "topology": "chords"}, **fields) == pytest.approx(
        complete, rel=1e-9
    )


def test_a_codec_from_outside_compresses_and_training_still_learns(plugin):
    plugin("tenths")
    found = losses(compression="tenths", steps=40)
    assert found[-5:].mean() < 0.7 * found[0]


def test_a_schedule_from_outside_trains_what_1f1b_trains(plugin):
    plugin("in_order")
    split = {"kind": "pipeline", "microbatches": 3}
    fields = {"workers": 2, "model": {"width": 16, "depth": 2}}
    mine = losses(split={**split, "schedule": "in-order"}, **fields)
    assert mine == pytest.approx(losses(split={**split, "schedule": "1f1b"}, **fields), rel=1e-9)


def test_a_platform_from_outside_is_a_file_and_takes_longer():
    def seconds(platform: str) -> float:
        cluster = {"world": "simulated", "platform": platform}
        job = dlpar.launch(Experiment(workers=8, cluster=cluster, **SMALL))  # on two nodes
        return job.wait(60).curve["seconds"].iloc[-1]

    assert seconds(str(PLUGINS / "slow_network.toml")) > 1.5 * seconds("p100-25gbe")
