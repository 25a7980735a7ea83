"""The judge of exercises: values of a function, and what is left on ranks."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from dlpar.collectives import ring_allgather, ring_allreduce
from dlpar.course import judge
from dlpar.course.judge import difference
from dlpar.graphs import mixing_matrix
from dlpar.lab import check, check_on_ranks


@pytest.fixture(autouse=True)
def first_try(monkeypatch):
    judge._failed.clear()


CASES = [({"rank": 0, "world": 2}, [0, 2]), ({"rank": 1, "world": 2}, [1, 3])]


def right(rank, world):
    return [rank, rank + world]


def test_right_answer():
    found = check(right, CASES)
    assert found and repr(found) == "solved: right is right in all 2 cases."


def test_first_wrong_case_and_value_are_named():
    def mine(rank, world):
        return [rank, 2]

    found = check(mine, CASES)
    assert not found
    assert found.sentence == "mine(rank=1, world=2): value 1 is 2, expected 3 (1 of 2 differ)."


def test_hints_come_one_by_one_and_only_for_wrong_answers():
    def mine(rank, world):
        return [rank]

    shown = [len(check(mine, CASES, hints=["a", "b"]).hints) for _ in range(4)]
    assert shown == [1, 2, 2, 2]
    assert check(None, CASES, hints=["a"]).hints == []


@pytest.mark.parametrize("body", [None, lambda rank, world: None, lambda rank, world: ...])
def test_unsolved_is_to_do_and_not_wrong(body):
    found = check(body, CASES)
    assert found.status == "to do" and not found


def test_not_implemented_is_to_do():
    def mine(rank, world):
        raise NotImplementedError

    assert check(mine, CASES).status == "to do"


def test_what_torch_has_not_implemented_is_a_mistake_of_the_answer():
    def products(comm, tensor):
        tensor += torch.dot(tensor != 0, tensor != 1)

    def product():
        return torch.dot(torch.ones(2) != 0, torch.ones(2) != 1)

    for verdict in (check(product, [((), 1.0)]), check_on_ranks(products, lambda tensors: tensors)):
        assert verdict.status == "not yet" and "not implemented for 'Bool'" in verdict.sentence


def test_a_small_number_is_compared_relatively():
    assert check(lambda: 0.00724, [((), 0.00734)], tolerance=2e-3).status == "not yet"


def test_exception_is_shown_with_the_students_own_line():
    def mine(rank, world):
        return [rank, world[0]]

    sentence = check(mine, CASES).sentence
    assert "raised TypeError" in sentence and "return [rank, world[0]]" in sentence


def test_arguments_are_the_students_to_change():
    given = [3, 1, 2]

    def mine(values):
        values.sort()
        return values

    assert check(mine, [((given,), [1, 2, 3])]) and given == [3, 1, 2]


@pytest.mark.parametrize(
    "got, expected, said",
    [
        (np.arange(3.0), np.arange(4.0), "it has shape (3,), expected (4,)"),
        (
            torch.ones(2, requires_grad=True),
            1 + torch.eye(2)[1],
            "value 1 is 1.0, expected 2.0 (1 of 2 differ)",
        ),
        ({"a": 1}, {"a": 2}, "['a'] is 1, expected 2"),
        ([[1], [2, 3]], [[1], [2, 4]], "[1], value 1 is 3, expected 4 (1 of 2 differ)"),
        ("ring", "tree", "it is 'ring', expected 'tree'"),
        (1.0, 1.0 + 1e-9, ""),
        (float("nan"), float("nan"), ""),
        (5, [5], "it has shape (), expected (1,)"),
        ("five", 5, "it is 'five', expected 5"),
    ],
)
def test_difference_names_the_place(got, expected, said):
    assert judge.difference(got, expected) == said


def test_verdict_is_escaped_and_code_in_hints_looks_like_code():
    def mine(text):
        return "<b>"

    shown = check(mine, [(("x",), "y")], hints=["return `text` <i>"])._repr_html_()
    assert "&lt;b&gt;" in shown and "<li>return <code>text</code> &lt;i&gt;</li>" in shown


# ---- on ranks -----------------------------------------------------------------------

MEAN = dict(
    expected=lambda tensors: [sum(tensors) / len(tensors)] * len(tensors), hints=["first hint", "second hint"]
)


def test_an_answer_not_written_yet_is_to_do():
    def average(comm, gradient):
        raise NotImplementedError

    verdict = check_on_ranks(average, **MEAN)
    assert verdict.status == "to do" and not verdict.hints


@pytest.mark.slow
def test_a_wrong_answer_names_the_first_rank_and_value_and_hints_grow():
    def only_rank_0_knows(comm, gradient):
        if comm.rank:
            comm.send(gradient, 0)
        else:
            arriving = torch.empty_like(gradient)
            for source in range(1, comm.size):
                comm.recv(arriving, source)
                gradient += arriving
            gradient /= comm.size

    verdict = check_on_ranks(only_rank_0_knows, **MEAN)
    assert verdict.sentence.startswith(
        "With 2 simulated ranks and length 1, on rank 1: value 0 is 2.0, expected 1.5"
    )
    assert verdict.hints == ["first hint"]
    assert check_on_ranks(only_rank_0_knows, **MEAN).hints == ["first hint", "second hint"]


def test_an_answer_that_deadlocks_is_told_at_once_where_each_rank_waits():
    def all_receive_first(comm, gradient):
        comm.recv(gradient, 1 - comm.rank)
        comm.send(gradient, 1 - comm.rank)

    verdict = check_on_ranks(all_receive_first, workers=[2], timeout=1.5, **MEAN)
    assert verdict.status == "not yet"
    for rank in (0, 1):
        assert f"rank {rank} in recv from rank {1 - rank} at test_judge.py:" in verdict.sentence
    assert "Traceback" not in verdict.sentence


@pytest.mark.parametrize("world", ["simulated", "real"])
def test_the_story_of_an_error_begins_with_the_students_own_line(world):
    def fails(comm, gradient):
        if comm.world.carrier == {"simulated": "simulated", "real": "mpi"}[world]:
            gradient[99_999] = 1.0
        ring_allreduce(comm, gradient)
        gradient /= comm.size

    verdict = check_on_ranks(fails, workers=[2], **MEAN)
    assert f"With 2 {world} ranks: rank 0 raised IndexError" in verdict.sentence
    story = verdict.sentence.partition("--- rank 0 ---\n")[2].splitlines()
    assert story[0] == "Traceback (most recent call last):" and "in fails" in story[1]


def test_an_answer_that_does_not_wait_for_its_sends_is_wrong_on_real_ranks():
    def hurries(comm, gradient):
        right, left, whole = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, gradient.clone()
        for _ in range(comm.size - 1):
            comm.isend(gradient, right)
            arriving = torch.empty_like(gradient)
            comm.recv(arriving, left)
            gradient.copy_(arriving)  # while it is sent
            whole += arriving
        gradient.copy_(whole / comm.size)

    tried = (check_on_ranks(hurries, workers=[5], **MEAN) for _ in range(10))
    wrong = next(verdict for verdict in tried if not verdict)
    assert re.match(r"With 5 real ranks and length \d000, ", wrong.sentence)


def test_an_answer_that_relies_on_buffered_sends_is_told_so():
    """Real ranks buffer messages as short as these."""

    def all_send_first(comm, gradient):
        theirs = gradient.clone()
        comm.send(gradient, 1 - comm.rank)
        comm.recv(theirs, 1 - comm.rank)
        gradient.add_(theirs).div_(2)

    verdict = check_on_ranks(all_send_first, workers=[2], timeout=1.5, **MEAN)
    assert verdict.status == "not yet" and "rank 0 in send of 4 bytes to rank 1" in verdict.sentence


@pytest.mark.slow
def test_what_is_right_in_a_simulation_alone_is_found_wrong_on_real_ranks():
    def only_simulated(comm, gradient):
        comm.allreduce(gradient)
        gradient /= comm.size if hasattr(comm, "simulator") else 1

    verdict = check_on_ranks(only_simulated, workers=[2], **MEAN)
    assert verdict.sentence.startswith(
        "With 2 real ranks and length 1, on rank 0: value 0 is 3.0, expected 1.5"
    )


@pytest.mark.slow
def test_a_mean_that_is_right_only_of_evenly_spaced_values_is_found():
    def half_of_the_last(comm, gradient):
        arriving = torch.empty_like(gradient)
        for other in range(1, comm.size):
            if comm.rank == 0:
                comm.recv(arriving, other)
        if comm.rank == 0:
            gradient.add_(arriving).div_(2)
            for other in range(1, comm.size):
                comm.send(gradient, other)
        else:
            comm.send(gradient, 0)
            comm.recv(gradient, 0)

    def forgets_itself(comm, weights):
        peers = [peer for peer in (comm.rank - 1, comm.rank + 1) if 0 <= peer < comm.size]
        before, arrived = weights.clone(), []
        sending = [comm.isend(before, peer) for peer in peers]
        for peer in peers:
            arrived.append(torch.empty_like(weights))
            comm.recv(arrived[-1], peer)
        own = 0 if len(peers) == 2 else 2 / 3
        weights.copy_(own * before + (1 - own) * sum(arrived) / len(peers))
        for request in sending:
            request.wait()

    line = lambda n: mixing_matrix([[j for j in (i - 1, i + 1) if 0 <= j < n] for i in range(n)])
    mixed = lambda tensors: list(torch.from_numpy(line(len(tensors))).float() @ torch.stack(tensors))
    assert "3 simulated ranks" in check_on_ranks(half_of_the_last, **MEAN).sentence
    assert (
        "value 0 is 3.0, expected 2.6" in check_on_ranks(forgets_itself, expected=mixed, workers=[3]).sentence
    )


def test_who_computes_a_new_tensor_is_told_to_change_the_given_one():
    def new_tensor(comm, tensor):
        tensor = tensor * comm.size

    def wrong_in_place(comm, tensor):
        tensor *= 2 * comm.size

    times = dict(expected=lambda tensors: [each * len(tensors) for each in tensors], workers=[2])
    assert check_on_ranks(new_tensor, **times).sentence.endswith(" Change the tensor itself, in place.")
    assert "in place" not in check_on_ranks(wrong_in_place, **times).sentence


def test_an_error_before_the_students_first_line_shows_no_line_of_ours():
    sentence = check_on_ranks(lambda gradient: None, workers=[2], expected=list).sentence
    assert "takes 1 positional argument but 2 were given" in sentence and "File" not in sentence


def test_a_loop_that_the_student_interrupts_is_shown_with_its_line():
    def endless(rank, world):
        raise KeyboardInterrupt  # as Jupyter's stop button does

    assert re.search("raised KeyboardInterrupt.*\n  in line", check(endless, CASES).sentence)


SUM = dict(expected=lambda tensors: [sum(tensors)] * len(tensors), like="ring")


@pytest.mark.slow
def test_a_ring_whose_all_gather_alone_works_names_what_is_wrong():
    def adds_nothing(comm, tensor):
        ring_allgather(comm, tensor.tensor_split(comm.size))

    verdict = check_on_ranks(adds_nothing, workers=[2], hints=["a hint"], **SUM)
    assert verdict.status == "not yet" and verdict.sentence.startswith(
        "With 2 simulated ranks and length 1, on rank"
    )
    assert verdict.hints == ["a hint"]


@pytest.mark.slow
def test_a_right_sum_that_sends_whole_tensors_is_told_so():
    def whole_tensors(comm, tensor):
        passing = tensor.clone()
        for _ in range(comm.size - 1):
            arriving = torch.empty_like(tensor)
            comm.sendrecv(passing, (comm.rank + 1) % comm.size, arriving, (comm.rank - 1) % comm.size)
            tensor += arriving
            passing = arriving

    verdict = check_on_ranks(whole_tensors, workers=[4], **SUM)
    assert "the result is right, but the ranks send 12 messages" in verdict.sentence


def all_samples(vectors):
    count = sum(v[-1] for v in vectors)
    whole = torch.cat([sum(v[:-1] * v[-1] for v in vectors) / count, count.view(1)])
    return [whole] * len(vectors)


def test_the_mean_of_the_means_is_found_wrong():
    def mean_of_means(comm, vector):
        comm.allreduce(vector)
        vector[:-1] /= comm.size

    verdict = check_on_ranks(mean_of_means, expected=all_samples, workers=[2], hints=["a hint"])
    assert verdict.sentence.startswith(
        "With 2 simulated ranks and length 4, on rank 0: value 0 is 1.5, expected 1.66"
    )
    assert verdict.hints == ["a hint"]


def path(workers: int) -> list[tuple[int, ...]]:
    return [tuple(j for j in (i - 1, i + 1) if 0 <= j < workers) for i in range(workers)]


def mixed(tensors):
    weights = torch.from_numpy(mixing_matrix(path(len(tensors)))).float()
    return list(weights @ torch.stack(tensors))


@pytest.mark.slow
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

    verdict = check_on_ranks(plain_mean, mixed, workers=(2, 3, 5), hints=["hint"])
    assert (
        not verdict
        and verdict.sentence.startswith("With 3 simulated ranks and length 1, on rank 0")
        and verdict.hints
    )


# ---- graded -------------------------------------------------------------------------


def star(comm, tensor):
    arriving = torch.empty_like(tensor)
    for other in range(1, comm.size):
        if comm.rank == 0:
            comm.recv(arriving, other)
            tensor += arriving
    for other in range(1, comm.size):
        if comm.rank == 0:
            comm.send(tensor, other)
    if comm.rank:
        comm.send(tensor, 0)
        comm.recv(tensor, 0)


@pytest.mark.slow
def test_who_sends_less_than_any_exchange_needs_is_told_so():
    from_the_inputs = lambda comm, tensor: tensor.mul_(8 / (comm.rank**2 + 1))  # on three ranks: 1 + 2 + 5
    sums = dict(expected=SUM["expected"], workers=[3], at_least="star")
    verdict = check_on_ranks(from_the_inputs, **sums)
    assert "the result is right, but the ranks send 0 messages and 0 bytes together; every exchange takes at least 4 " \
        "and 16." in verdict.sentence  # fmt: skip
    assert check_on_ranks(star, **sums)
    verdict = check_on_ranks(lambda comm, tensor: comm.allreduce(tensor), **sums)
    assert "the library moved the data and does not report how much. Use send and recv." in verdict.sentence


def test_graded_inputs_are_random_and_differ_by_ranks_number_of_ranks_and_trial(monkeypatch):
    def drawn(seed):
        monkeypatch.setattr(judge, "_seed", seed)
        return [tuple(judge._input(ranks, rank, 7).tolist()) for ranks in (2, 3) for rank in range(ranks)]

    assert drawn(None) == drawn(None) and len(set(drawn(None))) == 3
    once = drawn(1)
    assert once == drawn(1) and len({*once, *drawn(2)}) == 10


def test_no_input_of_a_graded_exercise_is_that_of_a_try(monkeypatch):
    from dlpar.course.exercises import formulas, parity

    def inputs():
        yield from (judge._input(2, 1, 4), parity._gradient(2, 1, 0), *parity._problem(2))

    tried = list(inputs())
    monkeypatch.setattr(judge, "_seed", 5)
    assert not any(np.array_equal(one, other) for one, other in zip(tried, inputs(), strict=True))
    monkeypatch.setattr(judge, "spmd", lambda program, asked, **_: [[1.0] * len(asked)])
    rings, grids = formulas._rings.__wrapped__(), formulas._grids.__wrapped__()
    assert len(grids) == len(formulas.GRIDS) + 1
    assert [given["n"] for given, _ in rings] != [n for *_, n in formulas.RINGS]


def test_missing_parts_and_half_precision_are_differences_not_errors():
    assert difference(None, torch.ones(3)).startswith("it is None, expected")
    assert difference((torch.ones(2), None), (torch.ones(2), torch.zeros(2)))
    assert difference(torch.ones(2, dtype=torch.bfloat16), [1.0, 1.0]) == ""
