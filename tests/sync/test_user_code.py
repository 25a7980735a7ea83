"""A scheme or a collective typed in a cell runs as an experiment and in spmd, and is checked against a reference."""

from __future__ import annotations

import linecache
import re
import textwrap

import numpy as np
import pytest

import dlpar
from dlpar import BadExperiment, Experiment
from dlpar.course import judge as verdict
from dlpar.lab import check_on_ranks, check_scheme
from dlpar.sync import Scheme
from dlpar.sync.user_code import NotFacts, not_a_scheme, own

pytestmark = pytest.mark.slow

SMALL = dict(model={"name": "mlp", "width": 16}, batch=30, steps=30, dtype="float64", evaluate_every=1000)


@pytest.fixture(autouse=True)
def first_try():
    verdict._failed.clear()


def typed(source: str, number: int = 1) -> dict:
    """What a kernel does with a cell: its lines are kept under a name of no file, and run in ``__main__``."""
    source, name = textwrap.dedent(source), f"<ipython-input-{number}-cell>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), names)
    return names


STAR = """
def my_star(comm, tensor):
    if comm.rank:
        comm.send(tensor, 0)
        comm.recv(tensor, 0)
        return
    arriving = comm.empty(len(tensor), tensor.dtype)
    for rank in range(1, comm.size):
        comm.recv(arriving, rank)
        tensor += arriving
    for rank in range(1, comm.size):
        comm.send(tensor, rank)
"""

MEAN = """
from dlpar.sync import Scheme

class Mean(Scheme):
    def combine(self):
        # Everybody sends its gradient to everybody.
        mine = self.replica.gradient.clone()
        arriving = self.comm.empty(len(mine), mine.dtype)
        others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        under_way = [self.comm.isend(mine, rank) for rank in others]
        for rank in others:
            self.comm.recv(arriving, rank)
            self.replica.gradient += arriving
        for request in under_way:
            request.wait()
"""


def losses(**fields) -> np.ndarray:
    return dlpar.launch(Experiment(**{**SMALL, **fields})).wait(60).curve["loss"].to_numpy()


@pytest.mark.parametrize("source, name", [(STAR, "my_star"), (MEAN, "Mean")])
def test_a_function_or_a_class_from_a_cell_trains_as_one_process_does(source, name):
    mine = losses(workers=3, sync=typed(source)[name])
    assert len(mine) == 30 and mine == pytest.approx(losses(workers=1), rel=1e-9)


def test_a_scheme_of_ones_own_averages_models_too():
    fields = dict(workers=3, averaging={"method": "local", "period": 5})
    assert losses(sync=typed(STAR)["my_star"], **fields) == pytest.approx(
        losses(sync="ring", **fields), rel=1e-9
    )


def test_a_collective_from_a_cell_runs_in_spmd():
    def summed(comm, collective):
        import torch

        tensor = torch.full((3,), float(comm.rank + 1))
        collective(comm, tensor)
        return tensor.tolist()

    assert dlpar.spmd(summed, typed(STAR)["my_star"], workers=3) == [[6.0] * 3] * 3


def test_an_exception_in_a_cells_scheme_quotes_the_cells_line():
    scheme = typed("def broken(comm, tensor):\n    return tensor[0] / comm.missing  # my line\n", 7)["broken"]
    with pytest.raises(dlpar.JobFailed) as raised:
        dlpar.launch(Experiment(sync=scheme, workers=2, **SMALL)).wait(60)
    assert "return tensor[0] / comm.missing  # my line" in str(raised.value)


def test_the_check_accepts_what_is_right_and_says_what_it_sends():
    found = check_scheme(typed(STAR)["my_star"], workers=(2, 3))
    assert found, found.sentence
    assert (
        "on 2 and 3 simulated workers and on 3 real ones: in each of 20 steps, every weight equals that of one process"
        in found.sentence
    )
    # Of 650 float64 weights: a star sends as many bytes as a ring in fewer messages, two thirds of them from one rank.
    assert (
        "A step of 3 workers sends 4 messages and 20,800 bytes, the busiest worker 10,400" in found.sentence
    )
    assert "ring sends 12 and 20,800 bytes, the busiest worker 6,936" in found.sentence


def test_the_check_accepts_a_class():
    assert check_scheme(typed(MEAN)["Mean"], workers=(3,))


FORGETFUL = """
def forgets_the_last(comm, tensor):
    from dlpar.collectives import ring_allreduce
    last = tensor[-1].clone()
    ring_allreduce(comm, tensor)
    if comm.rank == 1:
        tensor[-1] = last
"""


def test_the_check_names_the_first_step_and_worker_that_differ_and_gives_hints_one_by_one():
    scheme = typed(FORGETFUL)["forgets_the_last"]
    found = check_scheme(scheme, workers=(2,), hints=["look at the end", "look at worker 1"])
    assert not found and found.hints == ["look at the end"]
    assert "With 2 simulated workers, at step 0, on worker 1: the gradient, value 649 is" in found.sentence
    assert "1 of 650 differ" in found.sentence
    again = check_scheme(scheme, workers=(2,), hints=["look at the end", "look at worker 1"])
    assert again.hints == ["look at the end", "look at worker 1"]


def test_the_check_sees_weights_that_drift_later():
    source = (
        MEAN + "\n    def update(self):\n        self.seen = getattr(self, 'seen', 0) + 1\n        "
        "self.optimizer.step(self.replica.gradient * (1 if self.seen <= 4 else 1.01))\n"
    )
    found = check_scheme(typed(source)["Mean"], workers=(2,))
    assert "With 2 simulated workers, at step 4, on worker 0: the weights, value" in found.sentence


def test_a_deadlock_is_a_verdict_and_no_exception():
    source = "def waits(comm, tensor):\n    comm.recv(tensor, (comm.rank + 1) % comm.size)  # nobody sends\n"
    found = check_scheme(typed(source, 3)["waits"], workers=(2,), timeout=20.0)
    assert (
        found.status == "not yet"
        and "rank 0 in recv from rank 1 at <ipython-input-3-cell>:2" in found.sentence
    )


@pytest.mark.parametrize(
    "unwritten", [None, ..., Scheme, type("Mine", (Scheme,), {})], ids=["None", "...", "Scheme", "no combine"]
)
def test_a_scheme_that_is_not_written_is_to_do(unwritten):
    assert check_scheme(unwritten).status == "to do"


def test_a_function_that_raises_not_implemented_is_to_do():
    source = "def my_allreduce(comm, tensor):\n    raise NotImplementedError\n"
    assert check_scheme(typed(source)["my_allreduce"], workers=(2,)).status == "to do"


class NoScheme:
    """It has the calls of a scheme, but not what the training loop reads."""

    def __init__(self, experiment, comm, replica): ...

    steps = combine = update = spread = done = facts = state_bytes = lambda self, *_: None


@pytest.mark.parametrize(
    "thing, said",
    [
        (NoScheme, "got class NoScheme, allowed is a subclass of dlpar.sync.Scheme"),
        (lambda comm: None, "got function thing(comm), allowed is one that takes (comm, tensor)"),
        (5, "got thing, allowed is a function of (comm, tensor)"),
    ],
)
def test_what_is_no_scheme_is_refused_in_one_sentence(thing, said):
    assert said in not_a_scheme(thing, getattr(thing, "__name__", "thing").replace("<lambda>", "thing"))


def test_a_run_with_what_is_no_scheme_says_so():
    with pytest.raises(dlpar.JobFailed, match="allowed is one that takes \\(comm, tensor\\)"):
        dlpar.launch(Experiment(sync=lambda comm: None, workers=2, **SMALL)).wait(60)
    with pytest.raises(BadExperiment, match="sync"):
        Experiment(sync=5)


FACTS = "facts: got {}, allowed is a mapping with staleness and lead, whole numbers of 0 or more"


def with_facts(given) -> type[Scheme]:
    class Mine(Scheme):
        def __init__(self, *arguments):
            if arguments[1]:
                super().__init__(*arguments)

        def combine(self):
            self.comm.allreduce(self.replica.gradient)

        def facts(self):
            return given

    return Mine


@pytest.mark.parametrize(
    "given, but",
    [
        (None, ""),
        ({"norm": 1.0}, ""),
        ({"lead": 0, "staleness": 1.5}, ""),
        ({"lead": -1, "staleness": 0}, ""),
        ({"lead": 0, "staleness": np.int64(1)}, ""),
        ({1: 2, "lead": 0, "staleness": 0}, ""),
        ({"lead": 0, "loss": 1.0, "staleness": 0}, ", without loss, which the record already has"),
        ({"lead": 0, "of": 2, "staleness": 0}, ", without of, which the record already has"),
    ],
)
def test_facts_that_cannot_be_recorded_are_refused_in_one_sentence(given, but):
    with pytest.raises(NotFacts) as told:
        own(Experiment(sync=with_facts(given)), None, None).facts()
    assert str(told.value) == FACTS.format(given) + but


def test_facts_of_ones_own_beside_those_needed_are_recorded():
    given = {"lead": 0, "staleness": 1, "norm": 2.0}
    assert own(Experiment(sync=with_facts(given)), None, None).facts() == given


def test_a_run_whose_facts_cannot_be_recorded_fails_and_the_check_says_why():
    scheme = with_facts({"norm": 1.0})
    said = FACTS.format({"norm": 1.0})
    with pytest.raises(dlpar.JobFailed, match=re.escape(f"rank 0 raised NotFacts: {said}")):
        dlpar.launch(Experiment(sync=scheme, workers=2, cluster={"world": "simulated"}, **SMALL)).wait(60)
    assert (
        check_scheme(scheme, workers=(2,)).sentence
        == f"With 2 simulated workers, at step 0, on worker 0: {said}."
    )


def expected(tensors):
    return [sum(tensors)] * len(tensors)


def test_a_right_collective_that_sends_otherwise_is_told_so():
    star = typed(STAR)["my_star"]
    found = check_on_ranks(star, expected, workers=(2, 3), like="star")
    assert found and "right on 2 and 3 simulated ranks and on 3 real ones" in found.sentence
    found = check_on_ranks(star, expected, workers=(3,), like="ring")
    assert "the result is right, but the ranks send 4 messages and 16 bytes together" in found.sentence
    assert "ring sends 12 and 16" in found.sentence


def test_the_librarys_collective_is_no_answer():
    def by_library(comm, tensor):
        comm.allreduce(tensor)

    assert (
        "the library moved the data"
        in check_on_ranks(by_library, expected, workers=(2,), like="ring").sentence
    )
    assert check_on_ranks(by_library, expected, workers=(2,))


def test_what_cannot_be_sent_to_a_rank_is_a_verdict_too():
    import threading

    lock = threading.Lock()

    def guarded(comm, tensor):
        with lock:
            comm.allreduce(tensor)

    found = check_scheme(guarded, workers=(2,))
    assert found.status == "not yet"
    assert found.sentence == "guarded cannot be sent to other processes: cannot pickle '_thread.lock' object"
