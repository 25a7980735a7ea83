"""Horovod's figures: efficiency on 512 GPUs, and ring against parameter servers, by simulation."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from simulations import simulation_of

import dlpar
from dlpar import Experiment, Run
from dlpar.theory import predict
from dlpar.worlds.platforms import platform, workload
from published.simulated import of_sizes

pytestmark = pytest.mark.slow

TABLE = tomllib.loads(Path(__file__).with_name("horovod.toml").read_text())
PLATFORM = {"extends": "p100-25gbe-roce", "overlap": TABLE["overlap"]}
RING = {"scheme": "ring", "overlap": True, "bucket_mb": TABLE["bucket_mb"]}


def a_step(folder: Path, model: str, gpus: int, sync: dict, **cluster) -> Experiment:
    """A step of so many GPUs; three where servers take part, whose first is not like the others."""
    steps = 1 if sync is RING else 3
    return of_sizes(
        folder, PLATFORM, model, cluster, workers=gpus, batch=TABLE["batch"], steps=steps, sync=sync
    )


def efficiency(run: Run, model: str) -> float:
    """Seconds of a GPU alone over seconds of a step of all of them."""
    charged = workload(model)
    alone = platform(PLATFORM["extends"]).device.seconds(charged.flops * TABLE["batch"], charged)
    return alone * run.experiment.steps / run.curve["seconds"].iloc[-1]


@pytest.mark.parametrize("model, gpus", [("inception3", TABLE["gpus"]), ("vgg16", TABLE["gpus"] // 4)])
def test_the_smallest_gradient_on_512_gpus_and_the_largest_on_128_take_the_time_of_the_closed_form(
    model, gpus, tmp_path
):
    """The largest on 512 takes 10 s; tests/theory/test_step.py tries the closed form alone, with all models."""
    asked = a_step(tmp_path, model, gpus, RING)
    run = dlpar.launch(asked).wait(100)
    assert run.curve["seconds"].iloc[-1] == pytest.approx(predict(asked).seconds, rel=1e-3)
    if gpus == TABLE["gpus"]:
        assert efficiency(run, model) == pytest.approx(TABLE["efficiency"][model], abs=TABLE["within"])


@pytest.mark.parametrize("model", TABLE["efficiency"])
@pytest.mark.parametrize("gpus", [8, 32, 128])
def test_the_ring_is_quicker_than_parameter_servers(gpus, model, tmp_path):
    assert gpus >= TABLE["ring_above_ps_from"]
    servers = {"scheme": "ps", "servers": gpus // 4}  # one on each machine
    of_ring, of_servers = (
        efficiency(
            simulation_of(a_step(tmp_path, model, gpus, sync, **where), tmp_path / sync["scheme"]), model
        )
        for sync, where in ((RING, {}), (servers, {"placement": "colocated"}))
    )
    assert of_ring > of_servers
