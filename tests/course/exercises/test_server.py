"""The exercise of lab 02: a server's answer to a push."""

from __future__ import annotations

import sys

import cloudpickle
import pytest

from dlpar.lab import check_backup, check_server

pytestmark = pytest.mark.slow

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as from a notebook: ranks import no test module


def solved(server, worker, gradient):
    age = server.version - server.read[worker]
    server.weights -= server.lr / max(1, age) * gradient
    server.version += 1
    server.clock[worker] += 1
    server.waiting.append(worker)
    slowest = min(server.clock.values())
    return [w for w in server.waiting if server.clock[w] - slowest <= server.bound]


def test_a_right_server_is_tried_on_simulated_workers_and_on_real_ones():
    verdict = check_server(solved, bounds=[1])
    assert (
        verdict
        and "right on 4 simulated ranks and on 4 real ones (a server and 3 workers with 8 pushes each) for s = 1. "
        "No worker led the slowest by more than s clocks (the largest lead was 1)"
        in verdict.sentence
    )


def test_a_right_server_is_tried_with_every_bound_and_none_leaks_into_the_next():
    assert "for s = 0, 1 and 3. No worker led" in check_server(solved).sentence


def test_an_answer_not_written_yet_is_to_do():
    def on_push(server, worker, gradient):
        raise NotImplementedError

    assert check_server(on_push).status == "to do"
    assert check_server(None).status == "to do"


def test_one_who_lets_everybody_go_is_told_by_how_many_clocks():
    def asp(server, worker, gradient):
        solved(server, worker, gradient)
        return list(server.waiting)

    verdict = check_server(asp, bounds=[1], hints=["first hint", "second hint"])
    assert verdict.status == "not yet" and verdict.hints == ["first hint"]
    assert "must still wait, because it is 2 clocks ahead of the slowest and s is 1" in verdict.sentence


def test_one_who_answers_only_who_pushed_is_told_who_still_waits():
    def forgetful(server, worker, gradient):
        return [w for w in solved(server, worker, gradient) if w == worker]

    verdict = check_server(forgetful, bounds=[0])
    assert "but may continue, because it is 0 clocks ahead of the slowest and s is 0" in verdict.sentence


def test_one_who_forgets_staleness_is_shown_the_first_weight_that_differs():
    def plain(server, worker, gradient):
        age = server.version - server.read[worker]
        answer = solved(server, worker, gradient)
        server.weights -= server.lr * (1 - 1 / max(1, age)) * gradient
        return answer

    verdict = check_server(plain, bounds=[0])
    assert "updates ago): server.weights, value 0 is" in verdict.sentence


def forgets_who_waits(server, worker, gradient):
    waiting = list(server.waiting)
    go = solved(server, worker, gradient)
    server.waiting = waiting
    return go


def test_a_worker_that_a_server_forgets_is_missed_in_its_later_answers():
    assert check_server(forgets_who_waits, bounds=[0]).status == "not yet"


def test_a_server_may_itself_remove_who_is_answered():
    def tidy(server, worker, gradient):
        go = solved(server, worker, gradient)
        server.waiting = [each for each in server.waiting if each not in go]
        return go

    assert check_server(tidy, bounds=[1])


def test_a_mistake_that_raises_is_shown_and_ends_at_once():
    def broken(server, worker, gradient):
        return server.clocks[worker]

    verdict = check_server(broken)
    assert verdict.status == "not yet" and "has no attribute 'clocks'" in verdict.sentence


def backed_up(server, worker, gradient):
    """The solution of lab 11."""
    server.clock[worker] += 1
    server.waiting.append(worker)
    if server.read[worker] == server.version:
        server.gathered.append(gradient)
    if len(server.gathered) == server.needed:
        server.weights -= server.lr * sum(server.gathered) / server.needed
        server.gathered.clear()
        server.version += 1
    return [each for each in server.waiting if server.read[each] < server.version]


def test_a_server_with_backup_workers_is_right_with_none_one_and_two():
    verdict = check_backup(backed_up, backups=(0, 1, 2))
    assert verdict and "for b = 0, 1 and 2" in verdict.sentence


def sums(server, worker, gradient):
    go = backed_up(server, worker, gradient)
    if not server.gathered:
        server.weights *= server.needed
    return go


def keeps_late_ones(server, worker, gradient):
    server.read[worker] = server.version
    return backed_up(server, worker, gradient)


def takes_only_the_last(server, worker, gradient):
    is_last = len(server.gathered) + 1 == server.needed
    return backed_up(server, worker, gradient if is_last else 0 * gradient)


def lets_all_go(server, worker, gradient):
    backed_up(server, worker, gradient)
    return list(server.waiting)


@pytest.mark.parametrize(
    ("on_push", "said"),
    [
        (sums, "server.weights"),
        (takes_only_the_last, "server.weights"),
        (keeps_late_ones, "server.gathered has 1 pushes, expected 0"),
        (lets_all_go, "it has version 0 and the server has version 0"),
        (lambda server, worker, gradient: None, "server.gathered has 0 pushes, expected 1"),
    ],
)
def test_a_server_that_takes_late_pushes_or_too_few_is_told_the_first_that_differs(on_push, said):
    verdict = check_backup(on_push, backups=(1,))
    assert verdict.status == "not yet" and said in verdict.sentence
