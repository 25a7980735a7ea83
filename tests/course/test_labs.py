"""The labs' tables: every preset has one row, which names a belief, and notebooks find it by its name."""

from __future__ import annotations

import ast
import json
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from simulations import Simulations

from dlpar import Experiment
from dlpar.course import labs
from dlpar.course.curriculum import labs as curriculum
from dlpar.course.labs import one_gpu_many
from dlpar.course.rehearse import rehearse
from dlpar.lab import presets
from dlpar.lab.sweep import all_done
from dlpar.theory import contraction
from dlpar.worlds.platforms import platform

ROOT = Path(__file__).parents[2]

UNASSERTED = (
    "digits_by_mapreduce", "servers", "overlapped_training", "ring_and_servers", "short_messages",
    *(pytest.param(name, marks=pytest.mark.timed)
      for name in ("four_times_faster", "unsteady", "slow_rank", "lock_free_scaling", "slow_writer",
                   "slow_neighbour", "on_this_machine")),
)  # fmt: skip
"""Presets whose notebook does not assert itself that they show what it says; some of them are about time."""


def test_every_row_has_a_preset_of_its_own_that_says_what_it_is_and_a_belief_in_one_line():
    names = [row.name for _, row in labs.rows()]
    assert len(names) == len(set(names)) == 91
    for _, row in labs.rows():
        assert getattr(presets, row.name) is row.preset and row.preset.__doc__
        assert row.belief and "\n" not in row.belief


def test_every_public_function_of_a_lab_that_returns_experiments_has_a_row():
    tried = {row.name for _, row in labs.rows()}
    for lab, table in labs.TABLES.items():
        module = vars(__import__(table[0].preset.__module__, fromlist=["*"]))
        own = {
            name
            for name, each in module.items()
            if callable(each) and getattr(each, "__module__", "") == module["__name__"] and name[0] != "_"
        }
        of_gpu = {"on_gpu", "gpu_source"}  # run and named by gpu_runs, which has a row
        assert own - tried <= {"conflicts", "in_turn", "sizes_only", "parts_ms", *of_gpu}, lab


def experiments_in(runs) -> list[Experiment]:
    """All experiments that a preset returns."""
    if isinstance(runs, Experiment):
        return [runs]
    parts = runs.values() if isinstance(runs, dict) else runs if isinstance(runs, (list, tuple)) else ()
    return [experiment for part in parts for experiment in experiments_in(part)]


def code_of(notebook: Path) -> list[str]:
    """The source of each cell of code."""
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_two_ranks_of_the_gpu_lab_share_one_on_a_machine_with_several(monkeypatch):
    seen = set()
    note = lambda experiment: seen.add(os.environ["CUDA_VISIBLE_DEVICES"]) or SimpleNamespace(wait=str)
    for name, pretended in (("gpus", lambda: ["A", "B"]), ("trial", lambda number: ""), ("launch", note)):
        monkeypatch.setattr(one_gpu_many, name, pretended)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    one_gpu_many.gpu_runs()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    one_gpu_many.gpu_runs()
    assert seen == {"3", "0"}


@pytest.mark.slow
def test_labs_state_their_device(monkeypatch):
    """What they say of processors would be wrong on a machine with GPUs."""
    found = []

    def not_run(experiments) -> None:
        found.extend(experiments_in(experiments))
        raise RuntimeError("not here")

    monkeypatch.setattr("dlpar.course.labs.scaling.run_all", not_run)
    monkeypatch.setattr("dlpar.course.labs.when_machines_die.launch", not_run)
    # These return no experiments.
    measuring, failed = (
        ("sharded_reading", "ring_always_wins", "additions", "products", "this_machine"),
        set(),
    )
    for row in (row for _, row in labs.rows() if row.name not in measuring):
        for runs in filter(None, (row.preset, row.runs)):
            try:
                found += experiments_in(runs())
            except (RuntimeError, TypeError):
                failed.add(row.name)
    assert failed == {
        "steps_to_goal",
        "killed",
        "grid",
    }  # two run at once, one needs an argument of the notebook
    real = [experiment for experiment in found if experiment.cluster.world == "real"]
    assert len(real) > 50 and {experiment.cluster.device for experiment in real} == {"cpu"}
    written = [cell for path in ROOT.glob("labs/*.ipynb") for cell in code_of(path) if "Experiment(" in cell]
    assert len(written) >= 3
    assert not [cell for cell in written if re.search(r"\bExperiment\((?!\*\*)(?!.*device)", cell, re.DOTALL)]


def test_rows_of_chosen_labs_come_in_the_order_of_the_labs():
    assert [lab for lab, _ in labs.rows()] == sorted(lab for lab, _ in labs.rows())
    assert {lab for lab, _ in labs.rows(["03", "00"])} == {"00", "03"}
    assert list(labs.TABLES) == list(curriculum())
    with pytest.raises(ValueError, match="got '99', allowed is any of 00, 01, "):
        labs.rows(["99"])


def test_a_reveal_is_computed_and_never_a_literal():
    cells = [cell for path in ROOT.glob("labs/*.ipynb") for cell in code_of(path) if ".reveal(" in cell]
    for call in (node for cell in cells for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "reveal":
            names = {node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)}
            assert names - {ast.unparse(call.func.value)}, ast.unparse(call)
    assert len(cells) > 30


def test_labs_and_slides_call_presets_that_exist():
    called: dict[str, set[str]] = {}
    for path in (*ROOT.glob("labs/*.ipynb"), *ROOT.glob("slides/*.ipynb")):
        for cell in code_of(path):
            found = re.findall(r"\bpresets\.(\w+)", cell)
            called.setdefault(path.stem.partition("_")[0], set()).update(found)
    for each in set().union(*called.values()):
        assert hasattr(presets, each), each
    for lab, row in labs.rows():
        assert row.name in called[lab], f"lab {lab} does not run {row.name}"


@pytest.mark.parametrize(
    "file", sorted((ROOT / "dlpar/systems/platforms").glob("*.toml")), ids=lambda f: f.stem
)
def test_platforms_of_labs_and_systems_can_be_read(file):
    of_systems = ("distbelief", "grpc", "horovod", "titan", "titan-x")
    assert platform(str(file)).nodes >= 1
    assert file.stem in of_systems or file.read_text().startswith("# Lab ")


def test_lab_13_s_recorded_runs_are_those_of_its_experiments():
    from dlpar.course.labs.one_gpu_many import RECORDINGS, on_gpu

    runs, experiments = presets.gpu_runs(), on_gpu()
    assert {name: run.experiment for name, run in runs.items()} == experiments
    assert all(run.status == "done" and set(run.ranks["device"]) == {"cuda:0"} for run in runs.values())
    assert len(list(RECORDINGS.iterdir())) == len(experiments) and "H200" in presets.gpu_source()


@pytest.mark.slow
@pytest.mark.parametrize("name", UNASSERTED)
def test_a_preset_shows_what_its_lab_says(name):
    found = next(rehearse([(lab, row) for lab, row in labs.rows() if row.name == name]))
    assert found.held, found.said


CHANCE = (
    "more_updates", "rate_of_thirty", "races", "sharded_training", "accumulation",
    "accumulated_statistics", "own_samples", "first_run", "empty_samples", "more_neighbours", "without_a_flush",
)  # fmt: skip
"""Presets whose claim depends on chance."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("name", CHANCE)
def test_a_claim_holds_for_four_more_seeds(name, seed, monkeypatch, tmp_path):
    monkeypatch.setattr("dlpar.course.rehearse.run_all", Simulations(tmp_path))
    chosen = [(lab, row) for lab, row in labs.rows() if row.name == name]
    for _ in range(3):
        # Real processes race differently while other programs hold the cores: then once more.
        found = next(rehearse(chosen, seed=seed))
        if found.held or found.world != "real":
            break
    assert found.held, found.said


def test_the_factors_in_lab_04_are_those_of_the_matrices():
    factors = [contraction(experiment) for experiment in presets.pure_mixing()]
    np.testing.assert_allclose(factors, [(1 + 2 * np.cos(np.pi / 4)) / 3, 1 / 3, 0, 0], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_shares_of_batches_are_read_once_in_an_epoch(seed):
    (shows,) = [row.shows for _, row in labs.rows() if row.preset is presets.sharded_reading]
    held, said = shows(presets.sharded_reading(seed))
    assert held, said


@pytest.mark.slow
def test_four_times_the_gpus_save_fewer_steps_where_the_batch_is_large_for_five_seeds_at_their_best_rates(
    monkeypatch, tmp_path
):
    monkeypatch.setattr("dlpar.course.labs.scaling.run_all", Simulations(tmp_path))
    wide = presets.steps_to_goal(seeds=5, rates=(0.2, 0.4, 0.8, 1.2, 1.6))
    steps = wide[wide["rate"].between(0.4, 1.2)]  # the grid of the lab
    best, of_wide = (each.groupby(["seed", "GPUs"])["steps"].min().unstack() for each in (steps, wide))
    assert best.equals(of_wide), "a best rate is outside the grid"
    assert (best[4] < 2 / 3 * best[1]).all() and (best[32] > best[8] / 2).all(), best
    table = {row.preset: row for _, row in labs.rows(["06"])}
    held, said = table[presets.steps_to_goal].shows(steps)
    assert held, said
    of = steps.set_index(["GPUs", "rate", "seed"])["steps"]
    for seed in range(
        5
    ):  # the claim of `more_workers`: the rest of it is about seconds, which no seed changes
        one, _, eight, many = (of[e.workers, e.lr, seed] for e in presets.more_workers())
        assert one / many < 4 and many > eight / 2
    median = steps.groupby(["GPUs", "rate"])["steps"].agg(lambda each: each.median(skipna=False))
    for experiment in presets.more_workers():
        assert median[experiment.workers, experiment.lr] <= 1.1 * median[experiment.workers].min()


@pytest.mark.slow
def test_at_its_best_rate_1f1b_reaches_the_goal_before_pipedream_for_four_more_seeds(monkeypatch, tmp_path):
    monkeypatch.setattr("dlpar.lab.sweep.run_all", Simulations(tmp_path))
    flush, stream, *_ = presets.without_a_flush()
    rates = [(flush, 0.03), *((stream, lr) for lr in (0.004, 0.008, 0.016))]  # others take PipeDream longer
    for seed in range(1, 5):  # lab 09 runs seed 0
        asked = [each.replace(lr=lr, seed=seed, evaluate_every=4) for each, lr in rates]
        one, *others = [done.run.summary["time_to_accuracy"].get("0.9", math.inf) for done in all_done(asked)]
        assert one < min(others)
