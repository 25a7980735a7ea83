"""Tables of rows: reads within their bound, bytes of what is needed, and the training of one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from simulations import run as on_ranks

from dlpar import spmd
from dlpar.sync.table import HEAD, Table, serve
from dlpar.systems.words import accuracy, batch, direction, texts, train

TRAINING = {"steps": 12, "size": 24, "lr": 2.0}


def alone(steps: int, size: int, lr: float) -> torch.Tensor:
    """Weights that one process trains with dense steps."""
    data = texts()
    weights = torch.zeros(data.shape[0], data.classes, dtype=torch.float64)
    for step in range(steps):
        x, y = batch(data, step, size, 0, 1)
        weights -= lr * direction(x, y, weights, size)
    return weights


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 1), (4, 3)])
def test_sparse_reads_and_writes_train_as_one_process_does(workers, servers):
    found = on_ranks(partial(train, servers=servers, **TRAINING), workers + servers)
    together = torch.empty_like(alone(0, 1, 1.0))
    for number, each in enumerate(found[workers:]):
        together[number::servers] = each["weights"]
    assert torch.allclose(together, alone(**TRAINING), rtol=1e-9, atol=1e-12)
    assert all(each["oldest"] == 0 and each["pulled"] == each["gets"] for each in found[:workers])


@pytest.mark.parametrize("staleness", [1, 3])
def test_a_cache_avoids_pulls_and_no_read_is_older_than_its_bound(staleness):
    found = on_ranks(partial(train, servers=2, staleness=staleness, **TRAINING), 5)
    assert all(0 < each["oldest"] <= staleness for each in found[:3])
    assert all(each["pulled"] < each["gets"] for each in found[:3])
    fresh = on_ranks(partial(train, servers=2, **TRAINING), 5)
    assert sum(each["pulled"] for each in found[:3]) < sum(each["pulled"] for each in fresh[:3])


def test_two_workers_see_each_others_rows_a_clock_later_and_their_own_at_once():
    def program(comm):
        if comm.rank == 2:
            return serve(comm, [0, 1], [2], (4, 1))
        table, row, seen = Table(comm, [2], (4, 1)), torch.tensor([1]), []
        for _ in range(3):
            seen.append(table.get(row).item())
            table.add(row, torch.tensor([[10.0**comm.rank]], dtype=torch.float64))
            table.get(row)
            seen.append(table.cache[1].item())
            table.clock()
        table.leave()
        return seen

    first, second, held = on_ranks(program, 3)
    assert first == [0, 1, 11, 12, 22, 23] and second == [0, 10, 11, 21, 22, 32]
    assert held.view(-1).tolist() == [0, 33, 0, 0]


def test_bytes_are_those_of_the_rows_and_a_known_set_of_keys_is_sent_once():
    rows, columns, clocks = 40, 3, 5

    def program(comm):
        if comm.rank:
            return serve(comm, [0], [1, 2], (rows, columns)), comm.traffic.take()["bytes"]
        table, own = Table(comm, [1, 2], (rows, columns)), torch.arange(0, rows, 3)
        for _ in range(clocks):
            table.add(own, torch.ones(len(own), columns, dtype=torch.float64) + table.get(own) * 0)
            table.clock()
        table.leave()
        return table.counts, comm.traffic.take()["bytes"]

    (counts, sent), *servers = on_ranks(program, 3)
    n = len(range(0, rows, 3))
    # A question and an addition name the same rows: their numbers go once to each server.
    assert (counts["keys"], counts["keys_saved"]) == (n, n * (2 * clocks - 1))
    messages = 2 * (2 * clocks + 1 + 1)  # questions, clocks, the last clock and the end, to two servers
    assert sent == messages * 8 * HEAD + 8 * n + clocks * n * columns * 8
    assert sum(answered for _, answered in servers) == clocks * (2 * 8 * HEAD + n * columns * 8)


def test_a_value_filter_holds_small_changes_back_and_loses_none():
    found, whole = (
        on_ranks(partial(train, servers=1, threshold=threshold, **TRAINING), 3) for threshold in (0.05, 0.0)
    )
    assert sum(each["held_back"] for each in found[:2]) > 0 == sum(each["held_back"] for each in whole[:2])
    assert sum(each["added"] for each in found[:2]) < sum(each["added"] for each in whole[:2])

    def program(comm):
        if comm.rank:
            return serve(comm, [0], [1], (1, 1)).item()
        table = Table(comm, [1], (1, 1), threshold=1.0)
        for _ in range(5):
            table.add(torch.tensor([0]), torch.tensor([[0.3]], dtype=torch.float64))
            table.clock()
        table.leave()
        return table.counts

    counts, held = on_ranks(program, 2)
    assert held == pytest.approx(1.5) and counts["held_back"] == 4


@pytest.mark.slow
def test_a_table_trains_on_real_processes():
    found = spmd(train, 1, 40, 48, 2.0, 2, workers=4)
    assert accuracy(found, 1) > 0.6 and all(each["oldest"] <= 2 for each in found[:3])


@pytest.mark.parametrize("servers", [3, 4, 7])
def test_a_server_without_rows_waits_for_the_end(servers):
    ranks = list(range(1, servers + 1))

    def program(comm):
        if comm.rank:
            return len(serve(comm, [0], ranks, (2, 3)))
        table, rows = Table(comm, ranks, (2, 3)), torch.tensor([0, 1])
        table.add(rows, torch.ones(2, 3, dtype=torch.float64))
        table.clock()
        seen = table.get(rows).sum().item()
        table.leave()
        return seen

    assert on_ranks(program, servers + 1) == [6.0, 1, 1, *[0] * (servers - 2)]
