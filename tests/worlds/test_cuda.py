"""Everything on a GPU, for whoever has one: ``pytest tests/worlds/test_cuda.py``.

The same code runs on the CPU and on the GPU, so the one must give what the other does.  Ranks that
share a GPU exchange long messages within its memory, and stage others; one rank by itself has NCCL, and two
where there are two GPUs.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from conftest import visible_gpus

import dlpar
from dlpar import Experiment
from dlpar.jobs.launch import JobFailed
from dlpar.worlds.devices import gpus
from worlds.test_devices import FREE, SCHEMES, SPLITS, TEXT

with visible_gpus():  # the other tests see none
    GPUS = len(gpus()) if torch.version.cuda else 0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(GPUS == 0, reason="no CUDA device"),
    pytest.mark.usefixtures("with_gpus"),
]


@pytest.fixture
def one_gpu(with_gpus, monkeypatch):
    """The first GPU only, which ranks share."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0])


def trained(device: str, carrier: str = "auto", **fields) -> dlpar.Run:
    """A short real run."""
    small = {"steps": 12, "evaluate_every": 1000, "batch": 12, "model": {"width": 16}, "dtype": "float64"}
    run = dlpar.launch(
        Experiment(**{**small, **fields}, cluster={"device": device, "carrier": carrier})
    ).wait(120)
    for role, taken in zip(run.ranks["role"], run.ranks["device"]):
        assert taken.startswith(device if role == "worker" or carrier == "nccl" else "cpu")
    return run


def losses(device: str, carrier: str = "auto", **fields) -> np.ndarray:
    """Of each step of a short real run."""
    return trained(device, carrier, **fields).curve["loss"].to_numpy()


def check(carrier: str, scheme: str = "ring", **fields) -> None:
    """That a run on GPUs gives the losses of one on the CPU."""
    found = losses("cuda", carrier, **fields)
    if scheme in FREE:
        assert np.isfinite(found).all() and found[-3:].mean() < found[0]
    else:
        np.testing.assert_allclose(found, losses("cpu", **fields), rtol=1e-9)


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("name", SPLITS)
def test_every_split_gives_the_losses_of_the_cpu_where_ranks_share_a_gpu(name):
    check("mpi", **SPLITS[name])


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_gives_the_losses_of_the_cpu_where_ranks_share_a_gpu(name):
    check("mpi", name, workers=2, **SCHEMES[name][0])


@pytest.mark.parametrize("name", ["library", "overlapped", "adam", "local SGD", "1 bit", "mapreduce"])
def test_one_rank_has_nccl(name):
    check("nccl", workers=1, **SCHEMES[name][0])


@pytest.mark.skipif(GPUS < 2, reason="one CUDA device")
@pytest.mark.parametrize("name", [*SPLITS, *SCHEMES])
def test_nccl_carries_every_split_and_scheme_between_two_gpus(name):
    fields = SPLITS.get(name) or {"workers": 2, **SCHEMES[name][0]}
    if Experiment(**fields).ranks > GPUS:
        pytest.skip("fewer GPUs than ranks")
    check("nccl", name, **fields)


MIXED = ["data", "cnn", "tensor, transformer", "spatial", "gpipe", "zb-h1"]


@pytest.mark.parametrize("fields", [{"workers": 1}, *map(SPLITS.get, MIXED)], ids=["one worker", *MIXED])
def test_mixed_precision_gives_nearly_the_losses_of_full_precision(fields):
    fields = {**fields, "dtype": "float32", "lr": 0.02}
    np.testing.assert_allclose(losses("cuda", precision="bf16", **fields), losses("cpu", **fields), rtol=2e-2)


def test_digits_are_learnt_in_bfloat16():
    run = dlpar.launch(Experiment(workers=2, precision="bf16", cluster={"device": "cuda"})).wait(120)
    assert run.summary["accuracy"] >= 0.94


def test_nccl_between_ranks_that_share_a_gpu_is_refused_with_the_reason():
    with pytest.raises(
        RuntimeError, match=rf"{GPUS + 1} ranks see {GPUS} GPUs?, and NCCL refuses ranks that share one"
    ):
        dlpar.launch(Experiment(workers=GPUS + 1, batch=256, cluster={"carrier": "nccl"})).wait(60)


@pytest.mark.parametrize(
    "fields", [{"optimizer": "adam"}, {"optimizer": "adagrad"}, {"compression": "onebit"}]
)
def test_a_run_that_died_is_resumed_with_its_state_on_the_gpu(fields):
    given = {"steps": 24, "workers": 1, "evaluate_every": 1000, "cluster": {"device": "cuda"}, **fields}
    whole = dlpar.launch(Experiment(**given)).wait(120)
    job = dlpar.launch(Experiment(**given, snapshot={"every": 8}, deaths={"die": {0: 0.7}}))
    with pytest.raises(JobFailed):
        job.wait(120)
    resumed = dlpar.resume(job.run).wait(120)
    np.testing.assert_allclose(resumed.curve["loss"], whole.curve["loss"], rtol=1e-5)


# ---- messages and time ---------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False], ids=["one GPU", "a GPU each"])
def test_messages_between_gpus_hold_what_was_sent(shared, request):
    if shared:
        request.getfixturevalue("one_gpu")
    elif GPUS < 2:
        pytest.skip("one CUDA device")

    def exchange(_) -> list[str]:
        from dlpar.config.experiment import Cluster
        from dlpar.worlds.connect import connect

        comm = connect(Cluster(device="cuda", carrier="mpi"))
        wrong, peer = [] if (comm.ipc is not None) == shared else ["the carrier"], 1 - comm.rank
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
            sent = ((torch.arange(20_000, device=comm.device).view(100, 200) + comm.rank) % 2).to(dtype).t()
            room = torch.empty(100, 200, dtype=dtype, device=comm.device).t()
            comm.sendrecv(sent, peer, room, peer)
            if not torch.equal(room, 1 - sent if dtype is not torch.bool else ~sent):
                wrong.append(str(dtype))
        # What a GPU is told before a collective is started is done before it, and what is told after its end, after.
        bucket = torch.ones(1_000_000, device=comm.device)
        for _ in range(20):
            bucket.mul_(2).div_(2)
        comm.start(lambda comm, bucket: comm.allreduce(bucket), bucket.mul_(comm.rank + 1)).wait()
        if bucket.add_(1).mean().item() != 4:
            wrong.append("started beside")
        comm.close()
        return wrong

    assert dlpar.spmd(exchange, workers=2) == [[], []]


def test_a_process_trains_again_while_python_deletes_the_graphs_of_earlier_trainings():
    def trainings(_) -> list[tuple[float, float]]:
        import gc

        from dlpar.comm import Recorder
        from dlpar.config.experiment import Cluster
        from dlpar.split.split import Split
        from dlpar.train import train
        from dlpar.worlds.connect import connect

        comm, sums, loss = connect(Cluster(device="cuda")), [], Split._loss

        def collecting(split, x, y):
            gc.collect()  # within a capture, too
            return loss(split, x, y)

        for optimizer in ("sgd", "momentum", "adagrad", "adam"):
            experiment = Experiment(
                workers=1, steps=20, optimizer=optimizer, model={"width": 16}, dtype="float64"
            )
            for graphs in (True, False):
                Split._loss = collecting if graphs else loss
                model = train(comm, experiment.replace(cluster={"graphs": graphs}), Recorder())
                sums.append(sum(parameter.sum().item() for parameter in model.parameters()))
        comm.close()
        return list(zip(sums[::2], sums[1::2]))

    replayed, launched = np.transpose(dlpar.spmd(trainings, workers=1, timeout=110)[0])
    np.testing.assert_allclose(replayed, launched, rtol=1e-9)


ALONE = {
    **{optimizer: {"optimizer": optimizer} for optimizer in ("sgd", "momentum", "adagrad", "adam")},
    "cnn": {"model": "cnn"},
    "batch normalisation": {"model": {"norm": "batch"}},
    "transformer": TEXT,
}


@pytest.mark.parametrize("fields", ALONE.values(), ids=ALONE)
def test_one_graph_of_a_whole_step_gives_the_losses_of_the_cpu(fields):
    run = trained("cuda", "nccl", workers=1, **fields)
    spans = {span[0] for _, record in run.records() for span in record.get("spans") or ()}
    assert "whole step" in spans
    np.testing.assert_allclose(run.curve["loss"], losses("cpu", workers=1, **fields), rtol=1e-9)


def test_losses_that_are_read_many_steps_later_are_those_of_their_steps():
    many = {"workers": 1, "steps": 600, "lr": 0.02}
    run, launched = (trained("cuda", **many).curve, trained("cpu", **many).curve)
    np.testing.assert_allclose(run["loss"], launched["loss"], rtol=1e-6)
    assert len(run) == 600 and (run["seconds"].diff()[1:] > 0).all()


def test_a_gpu_is_told_ahead_and_settles_when_asked_to():
    def timed(_) -> tuple[float, float]:
        from dlpar.config.experiment import Cluster
        from dlpar.worlds.connect import connect

        comm = connect(Cluster(device="cuda"))
        square = torch.randn(4096, 4096, device=comm.device)
        (square @ square).sum().item()
        began = comm.now()
        for _ in range(200):
            square = torch.nn.functional.normalize(square @ square)
        told = comm.now() - began
        comm.world.settle()
        done = comm.now() - began
        comm.close()
        return told, done

    told, done = dlpar.spmd(timed, workers=1)[0]
    assert done > 2 * told
