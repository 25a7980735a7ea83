"""Lab 04: its presets refute what they are there to refute, and its exercise is checked rightly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dlpar.graphs import mixing_matrix
from dlpar.lab import check_on_ranks, presets
from dlpar.theory import contraction

pytestmark = pytest.mark.slow


def path(workers: int) -> list[tuple[int, ...]]:
    return [tuple(j for j in (i - 1, i + 1) if 0 <= j < workers) for i in range(workers)]


def expected(tensors):
    weights = torch.from_numpy(mixing_matrix(path(len(tensors)))).float()
    return list(weights @ torch.stack(tensors))


def test_plain_means_over_neighbours_are_found_wrong():
    def plain_mean(comm, weights):
        peers = path(comm.size)[comm.rank]
        sending = [comm.isend(weights.clone(), peer) for peer in peers]
        arrived = [torch.empty_like(weights) for _ in peers]
        for into, peer in zip(arrived, peers):
            comm.recv(into, peer)
        weights.copy_((weights + sum(arrived)) / (1 + len(peers)))
        for request in sending:
            request.wait()

    verdict = check_on_ranks(plain_mean, expected, workers=(2, 3, 5), hints=["hint"])
    assert (
        not verdict
        and verdict.sentence.startswith("With 3 simulated ranks and 1 numbers, on rank 0")
        and verdict.hints
    )


def test_the_figures_in_the_text_are_those_of_the_matrices():
    factors = [contraction(experiment) for experiment in presets.pure_mixing()]
    np.testing.assert_allclose(factors, [(1 + 2 * np.cos(np.pi / 4)) / 3, 1 / 3, 0], atol=1e-12)
