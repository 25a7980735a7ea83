"""The command that starts ranks: the words of each MPI, and what happens without one."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlpar
from dlpar import Experiment
from dlpar.jobs import mpiexec

pytestmark = pytest.mark.slow


def fake(folder: Path, said: str, name: str = "mpiexec") -> str:
    """A program that answers --version."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{said}\nEOF\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("said", "dialect", "flag"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to", "openmpi5", "--oversubscribe"),
        ("prterun (PRRTE) 3.0.13\nOpen MPI 5.0.11", "openmpi5", "--output"),
        ("mpirun (Open MPI) 4.1.4", "openmpi4", "--tag-output"),
        ("HYDRA build details:\n    Version: 4.2.0", "hydra", "-prepend-rank"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "hydra", "-prepend-rank"),
        ("something else 1.0", "plain", "-n"),
    ],
)
def test_each_mpi_is_spoken_to_in_its_own_words(tmp_path, monkeypatch, said, dialect, flag):
    monkeypatch.setenv("DLPAR_MPIEXEC", fake(tmp_path, said))
    mpiexec.find_starter.cache_clear()
    try:
        starter = mpiexec.find_starter()
    finally:
        mpiexec.find_starter.cache_clear()
    command = starter.command(3, ["python", "x.py"])
    assert starter.dialect == dialect and flag in command
    assert command[-4:] == ["-n", "3", "python", "x.py"]


def test_inside_a_slurm_allocation_the_sites_own_starter_wins(tmp_path, monkeypatch):
    fake(tmp_path, "slurm 24.05", name="srun")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    mpiexec.find_starter.cache_clear()
    try:
        command = mpiexec.find_starter().command(8, ["python"])
    finally:
        mpiexec.find_starter.cache_clear()
    assert command == [str(tmp_path / "srun"), "--label", "--mpi=pmix", "--overlap", "-n", "8", "python"]


def test_a_missing_mpi_is_one_clear_sentence(monkeypatch):
    monkeypatch.setenv("DLPAR_MPIEXEC", "/no/such/mpiexec")
    mpiexec.find_starter.cache_clear()
    with pytest.raises(mpiexec.NoMPI, match="DLPAR_MPIEXEC: got '/no/such/mpiexec', allowed is"):
        dlpar.launch(Experiment())
    mpiexec.find_starter.cache_clear()


def test_an_mpiexec_that_starts_singletons_is_caught(tmp_path, monkeypatch):
    """Two MPIs that do not know each other give N worlds of one rank: the ranks notice."""
    path = tmp_path / "mpiexec"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo other 1.0; exit; }\nshift 2\nexec "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("DLPAR_MPIEXEC", str(path))
    mpiexec.find_starter.cache_clear()
    try:
        with pytest.raises(dlpar.JobFailed, match="got a world of 1 ranks, allowed is 2"):
            dlpar.spmd(lambda comm: None, workers=2)
    finally:
        mpiexec.find_starter.cache_clear()
