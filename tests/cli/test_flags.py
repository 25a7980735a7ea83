"""An experiment as flags and back, also with parts of several kinds."""

from __future__ import annotations

import inspect
from typing import Annotated, Literal

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from dlpar import BadExperiment, Experiment
from dlpar.cli import flags
from dlpar.config.schema import Part, sentence


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


def from_words(words: list[str]) -> Experiment:
    """The experiment that ``dlpar run`` makes of its arguments."""
    taken = {}
    app = typer.Typer(add_completion=False)

    def command(**given):
        taken.update(given)

    command.__signature__ = inspect.Signature(flags.parameters())
    app.command()(command)
    app(args=words, standalone_mode=False)
    return flags.read(taken)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(experiments())
def test_every_experiment_survives_json_and_its_own_flags(experiment):
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert from_words(flags.to_flags(experiment)) == experiment


def test_flags_say_only_what_is_not_usual():
    assert flags.to_flags(Experiment()) == []
    experiment = Experiment(model="cnn", lr=0.05, sync={"overlap": True}, cluster={"timeout": 90})
    words = ["--model", "cnn", "--lr", "0.05", "--overlap", "--timeout", "90"]
    assert flags.to_flags(experiment) == words


# ---- a part of several kinds, as later schemes will be ----------------------------


def several_kinds():
    """An experiment whose `sync` is one of two schemes, each with fields of its own."""

    class Ring(Part):
        scheme: Literal["ring"] = Field("ring", title="sync", description="How replicas agree.")
        overlap: bool = Field(False, description="Overlap.")

    class Server(Part):
        scheme: Literal["ps"] = Field("ps", title="sync", description="How replicas agree.")
        servers: int = Field(1, ge=1, le=8, description="Servers.")
        wait: bool = Field(True, description="Wait for all.")

    class Small(Part):
        workers: int = Field(4, ge=1, le=64, description="Ranks.")
        sync: Annotated[Ring | Server, Field(discriminator="scheme", description="Agreement.")] = Ring()

        def __init__(self, **fields):
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise BadExperiment(sentence(error, type(self))) from None

    return Small, Ring, Server


def test_a_part_of_several_kinds_gives_flags_of_all_of_them():
    small, ring, server = several_kinds()
    found = {flag.spelling: flag for flag in flags.flags(small)}
    assert list(found) == ["--workers", "--sync", "--overlap", "--servers", "--wait"]
    assert found["--sync"].allowed == "one of ring, ps" and found["--servers"].kinds == ("ps",)

    chosen = flags.read({"sync_scheme": "ps", "sync_servers": "2"}, schema=small)
    assert chosen == small(sync=server(servers=2))
    assert flags.to_flags(chosen) == ["--sync", "ps", "--servers", "2"]
    assert flags.read({"sync_overlap": True}, schema=small) == small(sync=ring(overlap=True))
    changed = flags.read({"sync_scheme": "ps"}, '{"sync": {"scheme": "ring", "overlap": true}}', schema=small)
    assert changed == small(sync=server())
    three = flags.read({"sync_servers": "3"}, '{"sync": {"scheme": "ps"}}', schema=small)
    assert three == small(sync=server(servers=3))


def test_a_flag_of_another_kind_says_which_it_belongs_to():
    small, _, _ = several_kinds()
    with pytest.raises(BadExperiment, match="^--servers: got 2, allowed with --sync ps, not ring$"):
        flags.read({"sync_servers": "2"}, schema=small)


def test_no_two_fields_may_share_a_flag():
    class Deep(Part):
        kind: Literal["deep"] = Field("deep", title="deep")
        width: int = Field(1)

    class Clash(Part):
        width: int = Field(1)
        deep: Deep = Deep()

    with pytest.raises(AssertionError, match="--width"):
        flags.flags(Clash)


def test_a_file_is_changed_by_flags():
    """`--experiment` takes what a run folder holds."""
    experiment = Experiment(workers=2, model="cnn")
    assert flags.read({}, experiment.to_json()) == experiment
    assert flags.read({"workers": "3"}, experiment.to_json()) == experiment.replace(workers=3)
