"""Deep stacking: blocks train as one process would train them, send forward only, and have no bubble."""

from __future__ import annotations

import pytest
import torch
from simulations import trained

from dlpar import Experiment, launch
from dlpar.config.schema import BadExperiment
from dlpar.data import load
from dlpar.data.sampler import Sampler
from dlpar.models import build
from dlpar.split.stacking import Stack, passed_on

SMALL = dict(model={"name": "mlp", "width": 24}, batch=30, steps=12, dtype="float64", evaluate_every=1000)


def by_hand(blocks: int, **fields) -> tuple[list[float], Stack]:
    """Losses of the last block, and the stack, trained block by block in one process without messages."""
    experiment = Experiment(workers=1, **{**SMALL, **fields})
    data = load(experiment.data, experiment.seed, torch.float64, experiment.model.name)
    sampler = Sampler(experiment, data.train_y, len(data.train_x))
    x_of, losses = [data.batch(sampler.indices(step, 0)) for step in range(experiment.steps)], []
    inputs, nets = [x for x, _ in x_of], []
    for number in range(blocks):
        wide = type(data)(**{**vars(data), "train_x": inputs[0]})
        net = build(experiment.replace(seed=experiment.seed + number), wide)
        rule, losses, outputs = torch.optim.SGD(net.parameters(), experiment.lr), [], []
        for x, (_, y) in zip(inputs, x_of):
            output = net(x)
            loss = torch.nn.functional.cross_entropy(output, y)
            rule.zero_grad()
            loss.backward()
            rule.step()
            losses.append(loss.item())
            outputs.append(torch.cat([x, passed_on(output, "classification")], dim=1))
        nets.append(net)
        inputs = outputs
    return losses, Stack(nets, "classification")


@pytest.mark.parametrize("blocks", [2, 3, 5])
@pytest.mark.slow
def test_blocks_on_ranks_train_as_one_after_the_other_in_one_process(blocks, tmp_path):
    expected, stack = by_hand(blocks)
    run = trained(tmp_path / "run", workers=blocks, split="stacking", **SMALL)
    assert run.curve["loss"].to_numpy() == pytest.approx(expected, rel=1e-9)
    data = load(run.experiment.data, 0, torch.float64, "mlp")
    right = (stack(data.test_x).argmax(1) == data.test_y).double().mean().item()
    assert run.summary["accuracy"] == pytest.approx(right)


def test_the_largest_seed_has_blocks_too(tmp_path):
    assert len(trained(tmp_path / "run", workers=2, split="stacking", **SMALL | {"seed": 2**31 - 1}).curve)


def test_replicas_of_a_stack_train_as_one_stack(tmp_path):
    one = trained(tmp_path / "one", workers=2, split="stacking", **SMALL)
    two = trained(tmp_path / "two", workers=6, split={"kind": "stacking", "blocks": 2}, **SMALL)
    assert two.curve["loss"].to_numpy() == pytest.approx(one.curve["loss"].to_numpy(), rel=1e-9)


def test_outputs_go_forward_and_nothing_comes_back(tmp_path):
    run = trained(tmp_path / "run", workers=4, split="stacking", **SMALL)
    sent = run.steps.groupby("rank")[["bytes", "messages"]].sum()
    for rank, row in sent.iterrows():
        numbers = SMALL["batch"] * (rank + 1) * 10 if rank < 3 else 0
        assert row["bytes"] == SMALL["steps"] * numbers * 8
        assert row["messages"] == SMALL["steps"] * (rank < 3)


@pytest.mark.slow
def test_a_block_waits_for_the_first_outputs_only_where_a_pipeline_has_a_bubble_every_step(tmp_path):
    shares = {}
    for name, split in (("stack", "stacking"), ("pipeline", {"kind": "pipeline", "microbatches": 4})):
        fields = {
            **SMALL,
            "model": {"name": "mlp", "width": 512, "depth": 3},
            "batch": 512,
            "dtype": "float32",
        }
        run = trained(tmp_path / name, workers=4, split=split, cluster={"platform": "cpu-10gbe"}, **fields)
        later = run.steps[run.steps["step"] > 5]
        shares[name] = later["wait"].sum() / later[["compute", "comm", "wait"]].sum().sum()
    assert shares["stack"] < 0.05 and shares["pipeline"] > 0.25, shares


@pytest.mark.slow
@pytest.mark.parametrize("world", ["real", "paced"])
def test_a_stack_trains_on_processes_and_learns(world):
    fields = {**SMALL, "steps": 120, "dtype": "float32", "lr": 0.2}
    run = launch(Experiment(workers=3, split="stacking", cluster={"world": world}, **fields)).wait(60)
    assert run.summary["accuracy"] > 0.9


REFUSED = [
    {"split": "stacking", "model": "cnn"},
    {"split": "stacking", "data": "docstrings", "model": "transformer"},
    {"split": {"kind": "stacking", "blocks": 3}},
    {"split": "stacking", "cluster": {"world": "simulated", "messages": "sizes"}},
    {"split": "stacking", "sync": {"overlap": True}},
    {"split": "stacking", "precision": "bf16"},
]


@pytest.mark.parametrize("fields", REFUSED, ids=str)
def test_what_cannot_be_stacked_is_refused_in_a_sentence(fields):
    with pytest.raises(BadExperiment, match="^[^\n]+$"):
        Experiment(workers=4, **fields)
