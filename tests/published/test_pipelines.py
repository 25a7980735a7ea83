"""Published figures of pipelines, by simulation: workloads and platforms are files, as a user would write them.

Nothing is known of the links of these machines, and messages take no time.  Of torchgpipe's
table one number is fitted for each number of stages: the share of the slowest one.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from simulations import trained

from dlpar import Run
from dlpar.worlds.platforms import Device, Link, Platform

TABLE = tomllib.loads(Path(__file__).with_name("pipelines.toml").read_text())
FREE = Platform(
    name="free", device=Device(name="one", flops=1e12), nodes=8, between=Link(latency=0.0, bandwidth=1e30)
)


def simulated(
    folder: Path, layers: list[float], microbatches: int, stages: int, schedule: str, chunks: int = 1
) -> Run:
    """Two steps of a model whose layers cost so much, `microbatches` samples each."""
    workload = folder / f"layers-{stages}.json"
    rows = [{"name": f"layer{i}", "parameters": 0, "flops": flops} for i, flops in enumerate(layers)]
    workload.write_text(json.dumps({"name": "layers", "layers": rows}))
    split = {"kind": "pipeline", "schedule": schedule, "microbatches": microbatches, "chunks": chunks}
    return trained(
        folder / f"run-{stages}-{microbatches}",
        FREE,
        workers=stages,
        batch=microbatches,
        steps=2,
        split=split,
        cluster={"messages": "sizes", "stand_in_for": str(workload)},
    )


def seconds(run: Run) -> float:
    """Of the second step."""
    ended = run.steps.groupby("step")["t"].max()
    return ended[1] - ended[0]


@pytest.mark.parametrize("case", TABLE["megatron"]["cases"], ids=str)
def test_megatron_s_bubbles(case, tmp_path):
    p, m, v = case["p"], case["m"], case["v"]
    run = simulated(tmp_path, [1e9] * (p * v), m, p, "1f1b" if v == 1 else "interleaved", v)
    ideal = m * v * 1e9 / 1e12
    assert seconds(run) / ideal - 1 == pytest.approx((p - 1) / (v * m), rel=1e-9)


@pytest.mark.parametrize("stages, published", TABLE["gpipe"]["speed_up"].items())
def test_gpipe_s_speed_ups_of_a_transformer(stages, published, tmp_path):
    k, m = int(stages), TABLE["gpipe"]["micro_batches"]
    one, several = (seconds(simulated(tmp_path, [1e9] * 48, m, n, "gpipe")) for n in (1, k))
    assert one / several == pytest.approx(published, rel=TABLE["gpipe"]["within"])


def slowest_share(stages: str) -> float:
    """Of a micro-batch's time on one device, what the slowest of these stages takes, fitted at M = 32.

    M micro-batches through stages that take one unit together and at most x each take 1 + (M - 1) x.
    """
    return (32 / TABLE["torchgpipe"]["speed_up_32"][stages] - 1) / 31


@pytest.mark.parametrize("microbatches", [32, 4])
@pytest.mark.parametrize("stages", ["2", "4", "8"])
def test_torchgpipe_s_speed_ups_of_an_unevenly_cut_amoebanet(stages, microbatches, tmp_path):
    published = TABLE["torchgpipe"][f"speed_up_{microbatches}"][stages]
    within = TABLE["torchgpipe"]["within_at_4_and_4" if (stages, microbatches) == ("4", 4) else "within"]
    k, slowest = int(stages), slowest_share(stages)
    layers = [slowest * 1e9, *[(1 - slowest) / (k - 1) * 1e9] * (k - 1)]
    one, several = (seconds(simulated(tmp_path, layers, microbatches, n, "gpipe")) for n in (1, k))
    assert one / several == pytest.approx(published, rel=within)
