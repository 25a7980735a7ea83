"""Horovod's figures: efficiency on 512 GPUs, and ring against parameter servers, by simulation."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import dlpar
from dlpar.platforms import platform, workload
from published.simulated import started

pytestmark = pytest.mark.slow

TABLE = tomllib.loads(Path(__file__).with_name("horovod.toml").read_text())
PLATFORM = {"extends": "p100-25gbe-roce", "overlap": TABLE["overlap"]}
RING = {"scheme": "ring", "overlap": True, "bucket_mb": TABLE["bucket_mb"]}


def job(folder: Path, model: str, gpus: int, sync: dict, **cluster) -> dlpar.Job:
    """A step of so many GPUs; three where servers take part, whose first is not like the others."""
    steps = 1 if sync is RING else 3
    own = folder / f"{model} {sync['scheme']}"
    own.mkdir()
    return started(own, PLATFORM, model, cluster, workers=gpus, batch=TABLE["batch"], steps=steps, sync=sync)


def efficiency(job: dlpar.Job, model: str) -> float:
    """Seconds of a GPU alone over seconds of a step of all of them."""
    run, charged = job.wait(200), workload(model)
    alone = platform(PLATFORM["extends"]).seconds(charged.flops * TABLE["batch"], charged)
    return alone * run.experiment.steps / run.curve["seconds"].iloc[-1]


def test_efficiency_on_512_gpus(tmp_path):
    jobs = {model: job(tmp_path, model, TABLE["gpus"], RING) for model in TABLE["efficiency"]}
    found = {model: efficiency(each, model) for model, each in jobs.items()}
    assert found == pytest.approx(TABLE["efficiency"], abs=TABLE["within"])


@pytest.mark.parametrize("model", TABLE["efficiency"])
@pytest.mark.parametrize("gpus", [8, 32])
def test_the_ring_is_quicker_than_parameter_servers(gpus, model, tmp_path):
    assert gpus >= TABLE["ring_above_ps_from"]
    servers = {"scheme": "ps", "servers": gpus // 4}  # one on each machine
    of_servers = efficiency(job(tmp_path, model, gpus, servers, placement="colocated"), model)
    assert efficiency(job(tmp_path, model, gpus, RING), model) > of_servers
