"""Steps replayed from graphs.  Here a graph is a list of calls of torch, repeated on the same tensors."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trained_ranks import trained

from dlpar.replica import Replica


class Graph:
    """As torch.cuda.CUDAGraph."""

    replays = 0

    def __init__(self) -> None:
        self.calls, self.is_done = [], True  # the capture has made the first step's calls

    def replay(self) -> None:
        Graph.replays += 1
        if self.is_done:
            self.is_done = False
            return
        with torch._C._AutoDispatchBelowAutograd():
            self._repeat()

    def _repeat(self) -> None:
        for function, args, kwargs, made in self.calls:
            again = tree_leaves(function(*args, **kwargs))
            for old, new in zip(made, again):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Capture(TorchDispatchMode):
    """As torch.cuda.graph, but the calls are made as well."""

    def __init__(self, graph: Graph, pool=None, capture_error_mode: str = "") -> None:
        super().__init__()
        self.graph = graph
        # Other modes forbid that Python deletes an earlier training's graphs during a capture.
        assert capture_error_mode == "relaxed"

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.graph.calls.append((function, args, kwargs or {}, tree_leaves(found)))
        return found


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(Graph, "replays", 0)
    return lambda: monkeypatch.setattr(Replica, "collects", True)  # as on a GPU


CASES = {
    "mlp": {},
    "cnn": {"model": "cnn"},
    "batch normalisation": {"model": {"norm": "batch"}},
    "transformer": {"model": {"name": "transformer", "width": 16, "depth": 2}, "data": "docstrings"},
    "bf16": {"precision": "bf16", "dtype": "float32"},
    "ps": {"sync": "ps"},
    "gossip": {"sync": "gossip"},
    "local": {"averaging": {"method": "local", "period": 2}},
    "uneven shards": {"shards": "uneven"},
}


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_replayed_passes_give_the_losses_and_weights_of_passes_that_are_launched(graphs, fields):
    given = {"workers": 2, "steps": 8, "batch": 12, "evaluate_every": 4, **fields}
    right = trained(**given)
    graphs()
    found = trained(**given)
    assert Graph.replays == 2 * 2 * 5  # of two workers both passes of five steps
    assert (found.losses == right.losses).all() and torch.equal(found.weights, right.weights)


ALONE = {
    "sgd": {},
    "unused layer": {"model": {"name": "transformer", "width": 16, "depth": 2}, "data": "docstrings"},
    "batch normalisation": {"model": {"norm": "batch"}},
    "bf16": {"precision": "bf16", "dtype": "float32"},
    "buckets": {"sync": {"bucket_mb": 0.001}},
    "momentum": {"optimizer": "momentum"},
    "adagrad": {"optimizer": "adagrad"},
}

DOES_MORE = {
    "compressed": {"compression": "onebit"},
    "zero 1": {"split": {"zero": 1}},
    "averaged": {"averaging": {"method": "local", "period": 2}},
}
"""Schemes that do more than the update, so that each pass has its own graph."""


@pytest.mark.parametrize("name", [*ALONE, *DOES_MORE])
def test_one_graph_replays_the_whole_step_of_a_worker_that_only_updates(graphs, name):
    fields = (ALONE | DOES_MORE)[name]
    given = {"workers": 1, "steps": 8, "batch": 12, "evaluate_every": 4, **fields}
    right = trained(**given)
    graphs()
    found = trained(**given)
    assert Graph.replays == 5 * (2 if name in DOES_MORE else 1)
    assert (found.losses == right.losses).all() and torch.equal(found.weights, right.weights)


LAUNCHED = {"steps of different sizes": {"scheme": "mapreduce", "fraction": 0.5}, "hooks": {"factors": True}}


@pytest.mark.parametrize("sync", LAUNCHED.values(), ids=LAUNCHED)
def test_what_a_graph_cannot_repeat_is_launched(graphs, sync):
    given = {"workers": 2, "steps": 20, "batch": 12, "sync": sync}
    right = trained(**given)
    graphs()
    assert (trained(**given).losses == right.losses).all() and Graph.replays == 0


def test_an_overlapped_backward_pass_is_launched_so_that_buckets_leave_during_it(graphs):
    graphs()
    trained(workers=2, steps=6, batch=12, sync={"overlap": True})
    assert Graph.replays == 0
