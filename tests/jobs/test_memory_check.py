"""Memory is looked at before a job starts: what cannot fit is refused, what fits never is."""

from __future__ import annotations

import pytest

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.data import load
from dlpar.jobs.control_groups import ControlGroups, memory
from dlpar.jobs.memory_check import check_memory
from dlpar.models import build
from dlpar.worlds.devices import Gpu

MODELS = [
    {"model": {"name": "mlp", "width": 64, "depth": 5}},
    {"model": {"name": "cnn", "width": 64, "depth": 3}},
    {"model": {"name": "transformer", "width": 32, "depth": 2}, "data": "docstrings"},
    {"model": {"name": "logistic"}},
]


@pytest.mark.parametrize("fields", MODELS, ids=lambda fields: fields["model"]["name"])
def test_a_model_is_never_counted_larger_than_it_is(fields):
    experiment = Experiment(**fields)
    model = build(experiment, load(experiment.data, 0, model=experiment.model.name))
    there = sum(weight.numel() for weight in model.parameters())
    assert there / 3 * (experiment.model.hidden_weights > 0) <= experiment.model.hidden_weights <= there


def test_the_message_says_what_would_fit():
    experiment = Experiment(
        workers=8, model={"width": 4096, "depth": 3}
    )  # 2 x 4096^2 weights and as many gradients
    with pytest.raises(
        BadExperiment, match=r"^workers: 8 need about 2.3 GB of memory, 1.0 GB is left: 3 would fit$"
    ):
        check_memory(experiment, left=1_000_000_000)
    check_memory(experiment.replace(workers=3), left=1_000_000_000)
    with pytest.raises(BadExperiment, match="not even 1 would fit"):
        check_memory(experiment, left=100_000_000)


def test_what_ranks_share_out_counts_once():
    mine = {"workers": 8, "model": {"width": 4096, "depth": 9}, "optimizer": "adam", "batch": 64}
    room_for_one = 3_000_000_000  # a whole model with its state takes 2.1 GB
    for split in ({"kind": "pipeline"}, {"kind": "tensor"}, {"kind": "data", "zero": 3}):
        check_memory(Experiment(**mine, split=split), left=room_for_one)
    with pytest.raises(BadExperiment, match="8 need about 17.3 GB"):
        check_memory(Experiment(**mine), left=room_for_one)


def test_hogwild_s_workers_share_one_copy_of_the_weights():
    mine = Experiment(
        workers=8, model={"width": 4096, "depth": 3}, sync={"scheme": "hogwild"}
    )  # 134 MB of weights
    check_memory(mine, left=1_500_000_000)  # those once, gradients eight times
    with pytest.raises(BadExperiment, match="8 need about 1.4 GB"):
        check_memory(mine, left=1_000_000_000)


def test_only_a_number_of_workers_that_is_allowed_would_fit():
    mine = Experiment(workers=8, model={"width": 4096, "depth": 9}, split={"kind": "hybrid"}, batch=64)
    with pytest.raises(
        BadExperiment, match="4 would fit$"
    ):  # 5 would, if 2 x 2 parts could be spread over them
        check_memory(mine, left=1_500_000_000)


def test_a_simulation_is_one_process_and_sizes_need_no_models():
    large = {"workers": 64, "batch": 64, "model": {"width": 4096, "depth": 3}}
    with pytest.raises(BadExperiment, match="64 need about 17.2 GB"):
        check_memory(Experiment(**large, cluster={"world": "simulated"}), left=1_000_000_000)
    check_memory(Experiment(**large, cluster={"world": "simulated", "messages": "sizes"}), left=100_000_000)
    check_memory(Experiment(workers=256, batch=256, cluster={"world": "simulated"}), left=300_000_000)


def test_a_control_group_s_limit_counts_where_it_is_tighter(monkeypatch):
    monkeypatch.setattr(ControlGroups, "memory", lambda self: (1 << 62, 1 << 62))
    assert 0 < memory().free < memory().total < 1 << 62 and not memory().limited
    monkeypatch.setattr(ControlGroups, "memory", lambda self: (1 << 30, 5_000_000))
    assert memory() == (1 << 30, 5_000_000, True)
    with pytest.raises(BadExperiment, match="4 need about 82 MB of memory, 5 MB is left: not even 1"):
        check_memory(Experiment(workers=4))


# ---- GPUs ------------------------------------------------------------------------------------


def card(free_mb: int) -> Gpu:
    return Gpu("A", 80 * 10**9, free_mb * 10**6)


WIDE = Experiment(
    workers=4, model={"width": 4096, "depth": 3}
)  # 269 MB of weights and gradients, and a context


def test_a_job_that_takes_no_gpu_needs_none_of_its_memory(monkeypatch):
    """With gloo, ranks choose the CPU by themselves."""
    monkeypatch.setattr("dlpar.jobs.memory_check.gpus", lambda: [card(10)] * 4)
    with pytest.raises(BadExperiment, match="of the memory of GPU 0"):
        check_memory(WIDE, left=64 * 10**9)
    on_host = WIDE.replace(cluster={"carrier": "gloo"})
    check_memory(on_host, left=64 * 10**9)
    with pytest.raises(BadExperiment, match="of memory, 0.1 GB is left"):
        check_memory(on_host, left=100_000_000)


def test_weights_on_a_gpu_need_its_memory_and_not_the_machine_s():
    asked = WIDE.replace(cluster={"device": "cuda"})
    check_memory(asked, left=100_000_000, cards=[card(2_000)])  # on the host the model would not fit
    said = "^workers: 4 need about 1.5 GB of the memory of GPU 0, 1.0 GB is left: 2 would fit$"
    with pytest.raises(BadExperiment, match=said):
        check_memory(asked, left=100_000_000, cards=[card(1_000)])
    # Two on each; the second card is nearly full.
    with pytest.raises(BadExperiment, match="4 need about 0.7 GB of the memory of GPU 1, 0.4 GB is left: 3"):
        check_memory(asked, left=100_000_000, cards=[card(1_000), card(400)])
    check_memory(asked, left=100_000_000, cards=[card(800)] * 2)
    with pytest.raises(BadExperiment, match="4 need about 80 MB of memory, 50 MB is left: 2 would fit"):
        check_memory(asked, left=50_000_000, cards=[card(2_000)])


def test_a_job_that_leaves_the_device_open_needs_gpus_only_where_each_rank_has_one():
    check_memory(WIDE, left=2_000_000_000, cards=[card(100)])
    with pytest.raises(BadExperiment, match="4 need about 1.2 GB of memory"):
        check_memory(WIDE, left=1_000_000_000, cards=[card(5_000)] * 3)
    with pytest.raises(
        BadExperiment, match="4 need about 0.4 GB of the memory of GPU 3, 0.1 GB is left: 3 would"
    ):
        check_memory(WIDE, left=2_000_000_000, cards=[card(5_000)] * 3 + [card(100)])
