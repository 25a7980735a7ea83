"""A replica's flat vectors: where its weights lie, and how gradients come into them."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from simulations import run
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from trained_ranks import SMALL, trained

from dlpar import Experiment
from dlpar.comm import Recorder
from dlpar.comm.base import World
from dlpar.replica import Replica, aligned
from dlpar.split.split import StepGraphs
from dlpar.sync.optim import Optimizer
from dlpar.train import train


class PretendedGPU(SimpleNamespace):
    """A rank that says its tensors live on a GPU, but allocates them on the host, at a multiple of 64 bytes."""

    def __init__(self) -> None:
        device = torch.device("cuda", 0)
        super().__init__(device=device, world=World(device, "mpi"), compute=lambda work: work())

    def empty(self, shape, dtype):
        return torch.empty(shape, dtype=dtype)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def test_the_vectors_begin_where_most_weights_of_a_gpu_are_aligned():
    replica = Replica(layers(), PretendedGPU())
    for parameter in replica.model.parameters():
        off = [tensor.data_ptr() % 16 for tensor in (parameter, parameter.grad)]
        assert off == ([0, 0] if len(parameter) != 10 or parameter.dim() == 2 else [8, 8])  # the last bias
    plain = Replica(layers())
    assert torch.equal(replica.weights, plain.weights) and len(replica.gradient) == len(plain.gradient)


@pytest.mark.parametrize(
    ("sizes", "element_size", "offset"),
    [
        ([10, 640, 64], 4, 54),
        ([10, 640, 64], 8, 22),
        ([10, 640, 64], 2, 118),
        ([64, 10, 3], 4, 0),
        ([7, 5, 9], 4, 52),
    ],
)
def test_offsets_depend_on_the_size_of_a_number(sizes, element_size, offset):
    assert aligned(sizes, element_size) == offset


class Calls(TorchDispatchMode):
    """Keeps the names of the operations, and which tensors become bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.narrowed = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        if function is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") is torch.bfloat16:
            self.narrowed.append(tuple(args[0].shape))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("collects", [False, True])
def test_gradients_of_a_gpu_are_copied_by_one_kernel(monkeypatch, collects):
    monkeypatch.setattr(Replica, "collects", collects)
    model, (x, y) = layers(), (torch.randn(8, 64), torch.randint(10, (8,)))
    replica = Replica(model)
    for _ in range(2):
        replica.begin()
        loss = nn.functional.cross_entropy(model(x), y)
        with Calls() as calls:
            loss.backward()
            replica.collect()
    assert calls.names.count("aten.cat.out") == collects
    assert calls.names.count("aten.add_.Tensor") == (0 if collects else 6)
    plain = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    assert torch.equal(replica.gradient, torch.cat([g.flatten() for g in reversed(plain)]))


def test_plain_sgd_needs_no_copy_of_the_gradients_of_a_gpu(monkeypatch):
    (x, y), lr = (torch.randn(8, 64), torch.randint(10, (8,))), 0.05
    wide = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))  # cut into pieces
    plain, model = Replica(copy.deepcopy(wide)), wide
    nn.functional.cross_entropy(plain.model(x), y).backward()
    plain.weights.add_(plain.gradient, alpha=-lr)
    monkeypatch.setattr(Replica, "collects", True)
    replica = Replica(model)
    replica.begin()
    nn.functional.cross_entropy(model(x), y).backward()
    with Calls() as calls:
        replica.descend(Optimizer("sgd", replica.weights, lr))
    assert calls.names.count("aten._foreach_add_.List") == 1
    assert torch.equal(replica.weights, plain.weights) and not replica.gradient.any()


def test_a_layer_that_was_not_used_has_gradient_zero(monkeypatch):
    monkeypatch.setattr(Replica, "collects", True)
    model = layers()
    replica = Replica(model)
    replica.gradient.fill_(7.0)
    replica.begin()
    model[0](torch.randn(8, 64)).sum().backward()
    replica.collect()
    assert not model[4].weight.grad.any() and model[0].weight.grad.any()


SPLITS = {
    "data": {},
    "micro-batches": {"split": {"microbatches": 3}},
    "zero 1": {"split": {"zero": 1}},
    "zero 3": {"split": {"zero": 3}},
    "overlapped": {"sync": {"overlap": True, "bucket_mb": 0.001}},
    "tensor": {"split": "tensor"},
    "hybrid": {"workers": 4, "split": {"kind": "hybrid", "microbatches": 3}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITS)
def test_a_run_is_the_same_to_the_last_bit_whichever_way_gradients_come(monkeypatch, name):
    fields = {"workers": 2, "steps": 12, **SMALL["mlp"], **SPLITS[name]}
    plain = trained(**fields).losses
    monkeypatch.setattr(Replica, "collects", True)
    monkeypatch.setattr(StepGraphs, "replay", lambda graphs, step: False)  # there is no GPU
    assert (trained(**fields).losses == plain).all()


def test_micro_batches_share_the_casts_of_weights_and_steps_do_not():
    fields = {**SMALL["mlp"], "precision": "bf16", "steps": 4, "evaluate_every": 1000}

    def program(comm):
        with Calls() as calls:
            train(comm, Experiment(workers=1, split={"microbatches": 3}, **fields), Recorder())
        return calls.narrowed

    (narrowed,) = run(program, 1)
    assert [narrowed.count(shape) for shape in ((32, 64), (32, 32), (10, 32))] == [4, 8, 4]  # once a step


class Mixed(nn.Module):
    """Two weights of these types."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(3, dtype=dtype) for dtype in dtypes)


@pytest.mark.parametrize(
    "model, got",
    [
        (nn.ReLU(), "none"),
        (nn.Linear(2, 2).requires_grad_(False), "none"),
        (Mixed(torch.float32, torch.float64), "torch.float32, torch.float64"),
        (Mixed(torch.complex64), "torch.complex64"),
    ],
    ids=["no weights", "none is trained", "two types", "complex"],
)
def test_a_model_that_no_flat_vector_can_hold_is_refused(model, got):
    with pytest.raises(
        ValueError, match=f"^model: got trained parameters of {got}, allowed is one floating type$"
    ):
        Replica(model)
