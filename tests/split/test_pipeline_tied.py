"""A pipeline's first and last stage share a transformer's embedding: they send it, and it stays one weight."""

from __future__ import annotations

import pytest
import torch
from simulations import run
from trained_ranks import SMALL, trained

from dlpar import BadExperiment, Experiment
from dlpar.comm import Recorder
from dlpar.lab.figures.probes import prepared
from dlpar.split.pipeline import PipelineSplit
from dlpar.train import train
from dlpar.worlds.simulated.comm import SimulatedComm

SPLIT = {"kind": "pipeline", "stages": 2, "microbatches": 5}


def shared(layers: torch.nn.Module) -> torch.nn.Parameter:
    """The weight, in what a stage holds of the model."""
    (weight,) = (
        p for name, p in layers.named_parameters() if name in ("embed.token.weight", "output.weight")
    )
    return weight


def after_a_step(comm, experiment: Experiment) -> torch.Tensor:
    """What a stage has of the weight, after it was made to differ."""
    part = PipelineSplit(prepared(comm, experiment))
    shared(part.replica.model).data += comm.rank
    part.gradient(0)
    return shared(part.replica.model).detach()


@pytest.mark.parametrize("consistency, equal", [("asp", True), ("bsp", False)])
def test_copies_are_made_equal_where_each_stage_s_servers_update_in_an_order_of_their_own(consistency, equal):
    sync = {"scheme": "ps", "servers": 2, "consistency": consistency}
    experiment = Experiment(workers=2, split=SPLIT, sync=sync, **SMALL["transformer"])
    first, last = run(lambda comm: after_a_step(comm, experiment), 2)
    assert torch.equal(first, last) is equal


def test_a_codec_of_single_numbers_leaves_copies_equal():
    fields = {**SMALL["transformer"], "split": SPLIT, "compression": "fp16", "evaluate_every": 0}
    experiment = Experiment(workers=4, steps=5, **fields)
    first, last, *_ = run(lambda comm: shared(train(comm, experiment, Recorder())).detach(), 4)
    assert torch.equal(first, last)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        (
            dict(compression="onebit"),
            "compression.codec: got 'onebit', allowed with model transformer is other than onebit or topk: its "
            "first and last stage share a weight, and would round its gradient differently",
        ),
        (
            dict(sync={"scheme": "gossip", "start": "random"}),
            "sync.start: got 'random', allowed with split pipeline is same: parts would draw the same "
            "numbers, and copies different ones",
        ),
    ],
    ids=["codec", "start"],
)
def test_what_would_part_the_copies_is_refused_in_one_sentence(fields, sentence):
    with pytest.raises(BadExperiment) as refused:
        Experiment(workers=4, split=SPLIT, **SMALL["transformer"], **fields)
    assert str(refused.value) == sentence


def test_tags_of_a_pipeline_are_such_as_every_mpi_has(monkeypatch):
    tags = set()
    for name, place in {"isend": 2, "sendrecv": 4}.items():
        call = getattr(SimulatedComm, name)

        def noted(comm, *arguments, call=call, place=place):
            tags.add(arguments[place])
            return call(comm, *arguments)

        monkeypatch.setattr(SimulatedComm, name, noted)
    trained(workers=2, steps=1, evaluate_every=0, split=SPLIT, **SMALL["transformer"])
    assert len(tags) == 2 * 5 + 1 and 0 <= min(tags) and max(tags) < 2**15  # MPI promises up to 32,767
