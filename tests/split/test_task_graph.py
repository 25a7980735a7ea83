"""Task graphs: schedules within Graham's bound, results of one process on any ranks, and Spark's and BigDL's graphs."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import LINK, cluster
from simulations import run as on_ranks

from dlpar import spmd
from dlpar.split.task_graph import (
    From,
    Task,
    depth,
    run,
    schedule,
    stages,
    to_the_end,
    two_jobs,
    word_count,
    work,
)
from dlpar.worlds.platforms import Device, Link


@st.composite
def graphs(draw) -> list[Task]:
    """Graphs of up to 20 tasks, each with up to three inputs, whole or in part."""
    graph: list[Task] = []
    for number in range(draw(st.integers(1, 20))):
        names = (
            draw(st.lists(st.sampled_from(graph), max_size=3, unique_by=lambda t: t.name)) if graph else []
        )
        inputs = []
        for each in names:
            parts = draw(st.integers(1, 3))
            inputs.append(From(each.name, draw(st.integers(0, parts - 1)), parts))
        size = draw(st.integers(1, 5))

        def made(*given, number=number, size=size) -> torch.Tensor:
            return torch.arange(size, dtype=torch.float64) + number + sum(x.sum() for x in given)

        graph.append(Task(str(number), made, size, tuple(inputs), float(draw(st.integers(1, 100)))))
    return graph


def by_hand(graph: list[Task]) -> dict[str, torch.Tensor]:
    """All results, one after the other."""
    found: dict[str, torch.Tensor] = {}
    for task in graph:
        found[task.name] = task.work(*(found[i.task].tensor_split(i.parts)[i.part] for i in task.inputs))
    return found


@given(graphs(), st.integers(1, 6))
def test_a_schedule_keeps_dependencies_and_grahams_bound(graph, workers):
    plan, length = schedule(graph, workers)
    w, d = work(graph), depth(graph)
    assert max(w / workers, d) - 1e-9 <= length <= w / workers + d
    assert set(plan) == {task.name for task in graph} and set(plan.values()) <= set(range(workers))
    started = list(plan)
    assert all(started.index(i.task) < started.index(task.name) for task in graph for i in task.inputs)
    assert d == max(to_the_end(graph).values()) <= w


@settings(max_examples=25, deadline=None)
@given(graphs(), st.integers(1, 4), st.booleans())
def test_any_number_of_ranks_gives_the_results_of_one_process(graph, ranks, has_driver):
    driver = 1e3 if has_driver else None
    found = on_ranks(partial(run, graph=graph, driver=driver), ranks + has_driver)
    together = {name: tensor for each in found for name, tensor in each.items()}
    assert sum(map(len, found)) == len(graph)  # each task once
    for name, expected in by_hand(graph).items():
        assert torch.equal(together[name], expected)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_a_simulated_run_takes_as_long_as_its_schedule_says_if_messages_are_quick(workers):
    platform = cluster(link=Link(latency=1e-9, bandwidth=1e15), device=Device(name="one", flops=1.0))
    tasks = [Task(f"a{n}", partial(torch.ones, 1), 1, (), 1.0 + n % 3) for n in range(12)]
    tasks += [Task(f"b{n}", lambda x: x, 1, (From(f"a{n}"),), 2.0) for n in range(12)]
    tasks += [Task("end", lambda *x: sum(x), 1, tuple(From(f"b{n}") for n in range(12)), 3.0)]

    def timed(comm) -> float:
        run(comm, tasks)
        return comm.now()

    took = max(on_ranks(timed, workers, platform, computes=False))
    _, planned = schedule(tasks, workers)
    assert took == pytest.approx(planned, rel=1e-6)
    assert max(work(tasks) / workers, depth(tasks)) - 1e-6 <= took <= work(tasks) / workers + depth(tasks)


WORDS = ["a b a c", "b b d a", "c d d d"]


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_a_shuffle_groups_by_key_and_a_join_meets_another_table(keys):
    graph = word_count(WORDS, "abcd", keys)
    found = on_ranks(partial(run, graph=graph, driver=1.0), 4)
    together = {name: tensor for each in found for name, tensor in each.items()}
    joined = torch.cat([together[f"join {k}"] for k in range(keys)]).tolist()
    counts = Counter(" ".join(WORDS).split())
    assert joined == [counts[word] * number for number, word in enumerate("abcd")]
    number = stages(graph)
    assert {number["textFile 0"], number["map 0"]} == {0}  # narrow: a map stays with its text
    # A shuffle begins a stage, if a map's result has several takers. A join of two partitions is narrow.
    assert number["reduceByKey 0"] == number["join 0"] == (keys > 1)


def quadratic(step: int, worker: int, weights: torch.Tensor) -> torch.Tensor:
    """A worker's contribution: each has a different curvature and goal."""
    return (worker + 1.0) * (weights - worker) / 10


@pytest.mark.parametrize(("workers", "driver"), [(2, None), (3, 1.0), (4, None)])
def test_two_jobs_a_step_train_as_one_process_does(workers, driver):
    start = torch.linspace(-1, 1, 7, dtype=torch.float64)
    graph = two_jobs(quadratic, start, workers, steps=5, lr=0.2)
    weights = start.clone()
    for step in range(5):
        weights = weights - 0.2 * sum(quadratic(step, worker, weights) for worker in range(workers))
    found = on_ranks(partial(run, graph=graph, driver=driver), workers + (driver is not None))
    together = {name: tensor for each in found for name, tensor in each.items()}
    trained = torch.cat([together[f"weights 5 {k}"] for k in range(workers)])
    assert torch.allclose(trained, weights, rtol=1e-12)
    assert len(graph) == 2 * 5 * workers and max(stages(graph).values()) + 1 == 2 * 5  # two jobs a step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_driver_starts_tasks_of_any_type(dtype):
    graph = word_count(WORDS, "abcd", 2)
    found = on_ranks(partial(run, graph=graph, driver=1.0, dtype=dtype), 3)
    together = {name: tensor for each in found for name, tensor in each.items()}
    assert together["join 1"].tolist() == [2 * 2, 3 * 4] and together["join 1"].dtype == dtype


@pytest.mark.slow
def test_a_graph_runs_on_real_processes():
    start = torch.linspace(-1, 1, 7, dtype=torch.float64)
    graph = two_jobs(quadratic, start, 3, steps=4, lr=0.2)
    found = spmd(run, graph, 1.0, workers=4)
    together = {name: tensor for each in found for name, tensor in each.items()}
    assert torch.equal(torch.cat([together[f"weights 4 {k}"] for k in range(3)]), torch.cat(
        [tensor for name, tensor in sorted(by_hand(graph).items()) if name.startswith("weights 4")]))  # fmt: skip


def test_a_driver_orders_one_task_after_the_other_so_its_cost_grows_with_the_workers():
    platform = cluster(link=LINK, device=Device(name="one", flops=1e3))

    def overhead(workers: int) -> float:
        graph = [Task(str(n), partial(torch.ones, 1), 1, (), 1e4) for n in range(workers)]

        def timed(comm) -> float:
            run(comm, graph, 100.0)
            return comm.now()

        return max(on_ranks(timed, workers + 1, platform, computes=False)) - 10.0

    assert overhead(40) == pytest.approx(4 * overhead(10), rel=0.02)
    assert overhead(10) == pytest.approx(10 * 0.1, rel=0.02)


def test_a_task_that_takes_two_parts_of_one_result_is_its_only_user():
    parts = [
        Task("x", partial(torch.ones, 4), 4),
        Task("y", torch.add, 4, (From("x", 0, 2), From("x", 2, 4))),
    ]
    assert stages(parts) == {"x": 0, "y": 0}
    assert stages([*parts, Task("z", torch.neg, 4, (From("x"),))]) == {"x": 0, "y": 1, "z": 1}


def test_a_graph_that_cannot_run_is_refused_in_a_sentence():
    one = Task("one", partial(torch.ones, 1), 1)
    with pytest.raises(ValueError, match="^graph: got task 'one' twice, allowed is each name once$"):
        schedule([one, one], 2)
    with pytest.raises(ValueError, match="^graph: got input 'two' of 'one', allowed is a task before it$"):
        schedule([one._replace(inputs=(From("two"),))], 2)
    with pytest.raises(ValueError, match="^comm: got 1 rank, allowed with a driver is at least 2"):
        on_ranks(partial(run, graph=[one], driver=1.0), 1)


def test_graphs_one_after_the_other_in_a_world_are_not_taken_for_each_other():
    def program(comm) -> list[float]:
        sums = []
        for k in range(6):  # each is freed before the next is made
            parts = [Task(f"{k} {i}", partial(torch.full, (2,), i + k + 0.0), 2) for i in range(3 + k % 2)]
            whole = Task(
                "sum", lambda *all_parts: sum(all_parts), 2, tuple(From(part.name) for part in parts)
            )
            sums += [value[0].item() for name, value in run(comm, [*parts, whole]).items() if name == "sum"]
            comm.barrier()
        return sums

    found = sorted(number for own in on_ranks(program, 2) for number in own)
    assert found == sorted(float(sum(i + k for i in range(3 + k % 2))) for k in range(6))


def test_a_graph_that_has_grown_is_cut_again():
    def program(comm) -> list[list[str]]:
        grown = list(graph)
        first = sorted(run(comm, grown))
        grown.append(Task("y", torch.neg, 4, (From("x"),)))
        return [first, sorted(run(comm, grown))]

    graph = [Task("x", partial(torch.ones, 4), 4)]
    assert on_ranks(program, 1) == [[["x"], ["x", "y"]]]


def test_a_result_of_another_size_than_its_task_s_is_an_error():
    total = [Task("x", partial(torch.ones, 4), 4), Task("total", torch.sum, 4, (From("x"),))]
    with pytest.raises(RuntimeError, match=r"shape '\[4\]' is invalid for input of size 1"):
        on_ranks(partial(run, graph=total), 1)
