"""An experiment as flags and back, also with parts of several kinds."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field

from dlpar import BadExperiment, Experiment
from dlpar.cli import flags, sweep
from dlpar.config.rules import RULES
from dlpar.config.schema import Only, Part, kinds
from dlpar.config.split import WITHOUT_FLUSH


@st.composite
def experiments(draw):
    """Good experiments of every kind."""
    names = {"model": ["mlp", "cnn"], "data": ["digits", "mnist", "cifar10"]}
    if draw(st.booleans()):
        names = {"model": ["transformer"], "data": ["docstrings"]}
    text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
    workers = draw(st.integers(1, 64))
    return Experiment(
        model={"name": draw(st.sampled_from(names["model"])), "width": draw(st.integers(1, 99)), "heads": 1},
        data={"name": draw(st.sampled_from(names["data"])), "folder": draw(st.none() | text)},
        batch=draw(st.integers(workers, 10_000)),
        workers=workers,
        lr=draw(st.floats(0, 1000, exclude_min=True)),
        seed=draw(st.integers(0, 2**31 - 1)),
        optimizer=draw(st.sampled_from(["sgd", "momentum", "adagrad", "adam"])),
        evaluate_every=draw(st.none() | st.integers(1, 10_000_000)),
        sync={"overlap": draw(st.booleans()), "bucket_mb": draw(st.floats(0, 4096, exclude_min=True))},
        cluster={
            "threads": draw(st.none() | st.integers(1, 256)),
            "hostfile": draw(st.none() | text),
            "timeout": draw(st.floats(0.1, 86_400)),
        },
    )


def typed(words: list[str], several: bool = False) -> dict[str, Any]:
    """The values of the flags among the arguments of ``dlpar run``, or of ``dlpar sweep`` if `several`."""
    taken = {}
    app = typer.Typer(add_completion=False)

    def command(**given):
        taken.update(given)

    command.__signature__ = inspect.Signature(flags.parameters(several))
    app.command()(command)
    app(args=words, standalone_mode=False)
    return taken


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(experiments())
def test_every_experiment_survives_json_and_its_own_flags(experiment):
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert flags.read(typed(flags.to_flags(experiment))) == experiment


def test_flags_say_only_what_is_not_usual():
    assert flags.to_flags(Experiment()) == []
    experiment = Experiment(model="cnn", lr=0.05, sync={"overlap": True}, cluster={"timeout": 90})
    words = ["--model", "cnn", "--lr", "0.05", "--overlap", "--timeout", "90"]
    assert flags.to_flags(experiment) == words


@pytest.mark.parametrize(
    "split",
    [
        {"kind": "pipeline", "stages": 2, "microbatches": 1},
        {"kind": "pipeline", "stages": 0},
        {"kind": "tensor", "tensor": 2},
        {"kind": "hybrid", "stages": 2, "tensor": 2, "microbatches": 1},
        {"kind": "data", "microbatches": 8},
    ],
)
def test_kinds_with_different_defaults_of_one_field_survive_their_flags(split):
    experiment = Experiment(workers=4, model={"depth": 4}, split=split)
    assert flags.read(typed(flags.to_flags(experiment))) == experiment


# ---- a part of several kinds ------------------------------------------------------


def test_a_part_of_several_kinds_gives_flags_of_all_of_them():
    found = {flag.spelling: flag for flag in flags.flags()}
    assert found["--sync"].allowed == "one of ring, mapreduce, ps, gossip, hogwild"
    assert found["--servers"].kinds == ("ps",) and found["--workers"].kinds == ()
    # Of fields with equal names, the first kind's is described: hybrid allows no 0.
    assert "0: all workers" in found["--tensor"].field.description
    assert found["--tensor"].allowed == "a whole number from 0 to 64"

    chosen = flags.read({"sync_scheme": "ps", "sync_servers": "2"})
    assert chosen == Experiment(sync={"scheme": "ps", "servers": 2})
    assert flags.to_flags(chosen) == ["--sync", "ps", "--servers", "2"]
    assert flags.read({"sync_overlap": True}) == Experiment(sync={"overlap": True})
    changed = flags.read({"sync_scheme": "ps"}, {"sync": {"scheme": "ring", "overlap": True}})
    assert changed == Experiment(sync="ps")
    three = flags.read({"sync_servers": "3"}, {"sync": {"scheme": "ps"}})
    assert three == flags.read({"sync_servers": "3"}, {"sync": "ps"})
    assert three == Experiment(sync={"scheme": "ps", "servers": 3})
    deep = flags.read({"model_name": "cnn"}, {"model": {"name": "mlp", "depth": 3}})
    assert deep == Experiment(model={"name": "cnn", "depth": 3}), "the kinds of a model share their fields"


def test_a_flag_of_another_kind_says_which_it_belongs_to():
    with pytest.raises(BadExperiment, match=r"^--servers: got 2, allowed with --sync ps, not ring$"):
        flags.read({"sync_servers": "2"})


def test_no_two_fields_may_share_a_flag():
    class Deep(Part):
        kind: Literal["deep"] = Field("deep", title="deep")
        width: int = Field(1)

    class Clash(Part):
        width: int = Field(1)
        deep: Deep = Deep()

    with pytest.raises(AssertionError, match="--width"):
        flags.flags(Clash)


def test_a_file_is_changed_by_flags(tmp_path):
    """`--experiment` takes what a run folder holds."""
    experiment, file = Experiment(workers=2, model="cnn"), tmp_path / "experiment.json"
    file.write_text(experiment.to_json())
    fields = flags.fields_in(str(file))
    assert flags.read({}, fields) == experiment
    assert flags.read({"workers": "3"}, fields) == experiment.replace(workers=3)
    assert flags.read({"model_name": "mlp"}, fields) == experiment.replace(model={"name": "mlp"})
    assert flags.read({}, fields) == experiment, "the fields are not changed"


# ---- flags without effect ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, told",
    [
        ("run --sync ps --staleness 2", ["--staleness has no effect: it is meant with --consistency ssp"]),
        ("run --sync ps --softsync 2", ["--softsync has no effect: it is meant with --consistency softsync"]),
        (
            "run --sync ps --staleness-aware",
            ["--staleness-aware has no effect: it is meant with --consistency ssp or asp or softsync"],
        ),
        (
            "run --period 4",
            ["--period has no effect: it is meant with --averaging local or elastic or block_momentum"],
        ),
        (
            "run --keep .5 --momentum .5",
            [
                "--momentum has no effect: it is meant with --optimizer momentum",
                "--keep has no effect: it is meant with --compression topk",
            ],
        ),
        (
            "run --delay-ms 50",
            ["--delay-ms has no effect: it is meant with --delay constant or exponential or gamma"],
        ),
        (
            "run --sync mapreduce --regularization .5",
            ["--regularization has no effect: it is meant with --regularizer l1 or l2"],
        ),
        ("run --sync gossip --degree 3", ["--degree has no effect: it is meant with --topology random"]),
        (
            "run --sync gossip --topology random --degree 3 --exchange random",
            [
                "--topology has no effect: it is meant with --exchange neighbours or pairwise or push_sum",
                "--degree has no effect: it is meant with --exchange neighbours or pairwise or push_sum",
            ],
        ),
        ("run --node-size 3", ["--node-size has no effect: it is meant with --allreduce hierarchical"]),
        (
            "run --model linear --data diabetes --width 8",
            ["--width has no effect: it is meant with --model mlp or cnn or transformer"],
        ),
        ("run --sync ps --consistency ssp --staleness 2 --averaging local --period 4 --width 8", []),
        (
            "sweep --sync ring,ps --staleness 2,4",
            ["--staleness has no effect: it is meant with --consistency ssp"],
        ),
        ("sweep --sync ring,ps --consistency bsp,ssp --staleness 2,4", []),
    ],
)
def test_a_flag_without_effect_is_told_of(command, told, capsys):
    name, *words = command.split()
    given = typed(words, several=name == "sweep")
    asked = [one.experiment for one in sweep.read(given)] if name == "sweep" else [flags.read(given)]
    flags.tell_idle(name, given, asked)
    assert capsys.readouterr().err.splitlines() == [f"dlpar {name}: {sentence}" for sentence in told]


def test_every_row_of_the_tables_is_about_fields_and_values_that_exist():
    known = {flag.name: flag for flag in flags.flags()}
    capabilities = {"split", "sync", "sync.server_ranks", "sync.runs_free", "sync.sends_gradients"}
    parts = [kind for name in ("split", "sync") for kind in kinds(Experiment.model_fields[name])]

    def check(path, values):
        named = known[path].kinds if known[path].is_head else flags.choices(known[path].field)
        assert {*values} <= {*named} or not named, path

    for beside, values, path, allowed, why in (
        *RULES,
        *WITHOUT_FLUSH,
        *(row for p in parts for row in p.rules),
    ):
        if beside not in capabilities:
            check(beside, values)
        check(path, allowed)
        assert why
    marks = [mark for flag in flags.flags() for mark in flag.field.metadata if isinstance(mark, Only)]
    assert len(marks) > 30
    for mark in marks:
        check(mark.beside, mark.values)
