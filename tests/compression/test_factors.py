"""Sufficient factors: the same training as with gradients, in the bytes that a formula says."""

from __future__ import annotations

import pytest
from simulations import trained

from dlpar import Experiment, launch
from dlpar.compression.factors import are_shorter
from dlpar.config.schema import BadExperiment
from dlpar.worlds.platforms import Platform

FACTORS = {"scheme": "ring", "factors": True}
TEXT = {"name": "docstrings", "context": 4}
MODELS = [
    {"model": {"name": "mlp", "width": 96, "depth": 2}, "batch": 6},
    {"model": {"name": "cnn"}, "batch": 3},
    {"model": {"name": "transformer", "width": 64}, "data": TEXT, "batch": 3, "lr": 0.01},
    {"model": {"name": "mlp", "width": 96}, "batch": 12, "split": {"microbatches": 2}},
    {"model": {"name": "mlp", "width": 96}, "batch": 7},  # shares of 3, 2 and 2 samples
]


@pytest.mark.parametrize("fields", MODELS, ids=lambda fields: fields["model"]["name"])
def test_factors_train_as_one_process_does(fields, tmp_path):
    fields = {"steps": 8, "dtype": "float64", "evaluate_every": 1000, **fields}
    alone = trained(tmp_path / "alone", workers=1, **fields)
    run = trained(tmp_path / "factors", workers=3, sync=FACTORS, **fields)
    assert run.curve["loss"].to_numpy() == pytest.approx(alone.curve["loss"].to_numpy(), rel=1e-9)
    assert any(r["k"] == "event" and r["name"] == "chosen" and r["factors"] for _, r in run.records())


@pytest.mark.parametrize(("workers", "share"), [(2, 1), (2, 16), (4, 3), (5, 40)])
def test_each_layer_sends_the_shorter_and_bytes_follow_the_formula(workers, share, tmp_path):
    width, steps = 96, 3
    model = {"name": "mlp", "width": width, "depth": 2}
    run = trained(
        tmp_path / "run",
        workers=workers,
        batch=share * workers,
        steps=steps,
        model=model,
        sync=FACTORS,
        evaluate_every=1000,
    )
    numbers = 0.0
    for inputs, outputs in ((64, width), (width, width), (width, 10)):
        whole = 2 * (workers - 1) / workers * outputs * (inputs + 1)
        thin = (workers - 1) * share * (inputs + outputs)
        assert are_shorter(share, inputs, outputs, workers) == (thin < whole)
        numbers += min(whole, thin)
    # Chunks of a ring are a number longer or shorter where N does not divide a bucket: over all ranks that evens out.
    assert run.steps["bytes"].sum() == pytest.approx(4 * numbers * workers * steps, abs=workers * steps)


@pytest.mark.parametrize("fields", MODELS, ids=lambda fields: fields["model"]["name"])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.slow
def test_factors_pushed_to_servers_train_as_one_process_does(fields, servers, tmp_path):
    fields = {"steps": 8, "dtype": "float64", "evaluate_every": 1000, **fields}
    alone = trained(tmp_path / "alone", workers=1, **fields)
    sync = {"scheme": "ps", "servers": servers, "factors": True}
    run = trained(tmp_path / "factors", workers=3, sync=sync, **fields)
    assert run.curve["loss"].to_numpy() == pytest.approx(alone.curve["loss"].to_numpy(), rel=1e-9)


@pytest.mark.parametrize(("servers", "share"), [(1, 1), (1, 16), (2, 3), (3, 40)])
def test_each_layer_pushes_the_shorter_to_servers_by_the_formula(servers, share, tmp_path):
    width, steps, workers = 96, 3, 4
    fields = dict(workers=workers, batch=share * workers, steps=steps, evaluate_every=1000)
    model, sync = {"name": "mlp", "width": width, "depth": 2}, {"scheme": "ps", "servers": servers}
    sent = []
    for factors in (True, False):
        run = trained(tmp_path / str(factors), model=model, sync={**sync, "factors": factors}, **fields)
        sent.append(run.steps["bytes"].sum())
    layers = ((64, width), (width, width), (width, 10))
    whole = [outputs * (inputs + 1) for inputs, outputs in layers]
    thin = [servers * share * sum(layer) for layer in layers]
    saved = sum(max(0, gradient - factors) for gradient, factors in zip(whole, thin))
    assert sent[1] - sent[0] == 4 * saved * workers * steps
    assert sent[1] >= 4 * sum(whole) * workers * steps


@pytest.mark.parametrize("consistency", ["ssp", "asp"])
def test_free_workers_push_factors_and_learn(consistency, tmp_path):
    sync = {"scheme": "ps", "servers": 2, "factors": True, "consistency": consistency}
    fields = dict(workers=4, batch=16, steps=150, lr=0.1, model={"name": "mlp", "width": 128})
    assert trained(tmp_path / "run", sync=sync, **fields).summary["accuracy"] > 0.85


@pytest.mark.slow
def test_factors_travel_between_real_processes_in_fewer_bytes():
    common = dict(workers=2, batch=4, steps=20, model={"name": "mlp", "width": 128}, evaluate_every=1000)
    runs = [launch(Experiment(sync=sync, dtype="float64", **common)).wait(60) for sync in ("ring", FACTORS)]
    assert runs[1].curve["loss"].to_numpy() == pytest.approx(runs[0].curve["loss"].to_numpy(), rel=1e-9)
    assert runs[1].summary["bytes_sent"] < 0.2 * runs[0].summary["bytes_sent"]


REFUSED = [
    {"sync": {**FACTORS, "overlap": True}},
    {"sync": FACTORS, "split": {"zero": 1}},
    {"sync": FACTORS, "split": "tensor"},
    {"sync": FACTORS, "compression": "onebit"},
    {"sync": FACTORS, "averaging": "local"},
    {"sync": FACTORS, "shards": "uneven"},
    {"sync": FACTORS, "cluster": {"world": "simulated", "messages": "sizes"}},
]


@pytest.mark.parametrize("fields", REFUSED, ids=str)
def test_what_has_no_factors_is_refused_in_a_sentence(fields):
    with pytest.raises(BadExperiment, match="^[^\n]+ with sync.factors [^\n]+$|^[^\n]+factors[^\n]+$"):
        Experiment(workers=2, **fields)


def test_the_product_of_factors_costs_its_flops(tmp_path):
    """Of K rows in all, 2 K FLOPs for each weight: on a device of 1 GFLOP/s, beside links that take no time."""
    device, link = {"name": "one", "flops": 1e9}, {"latency": 0.0, "bandwidth": 1e15}
    platform = Platform(name="slow", device=device, nodes=8, between=link)
    fields = dict(workers=2, steps=2, batch=4, model={"name": "mlp", "width": 256, "depth": 1})
    runs = [
        trained(tmp_path / f"{factors}", platform, sync={"scheme": "ring", "factors": factors}, **fields)
        for factors in (True, False)
    ]
    with_product, without = (run.curve["seconds"].diff().iloc[-1] for run in runs)
    weights = 64 * 256 + 256 * 10
    assert with_product - without == pytest.approx(
        2 * 4 * weights / 1e9, rel=0.25
    )  # the sums of a ring left out
