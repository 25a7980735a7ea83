"""Rank code runs in every world only if it keeps the rules: no clock but `comm.now`, no global randomness, no MPI."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dlpar

ROOT = Path(dlpar.__file__).parent
RANK_CODE = sorted(
    [ROOT / name for name in ("train.py", "models.py", "data.py", "sampling.py", "optim.py", "record.py")]
    + [
        *(ROOT / "collectives").glob("*.py"),
        *(ROOT / "compression").glob("*.py"),
        *(ROOT / "sync").glob("*.py"),
        *(ROOT / "split").glob("*.py"),
    ]
)
CARRIERS = [
    f"dlpar.comm.{p.stem}"
    for p in (ROOT / "comm").iterdir()
    if p.stem not in ("__init__", "__pycache__", "base")
]
WORLDS = ("mpi4py", "torch.distributed", "dlpar.platforms", "dlpar.launcher", *CARRIERS)


@pytest.mark.parametrize("path", RANK_CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_rank_code_knows_neither_its_world_nor_the_wall_clock(path):
    imported, called = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, (ast.Attribute, ast.Name)):
            called.add(ast.unparse(node))
    assert not imported & {"time", "datetime", "random"}
    imported = {
        name for name in imported if not name.startswith("dlpar.launcher.payload")
    }  # what a cell typed
    if path.name != "models.py":  # which knows the outline that stands for a model without numbers
        assert not [name for name in imported if name.startswith(WORLDS)]
    # A generator of one's own, keyed by (seed, step, rank), may be seeded; the global ones may not.
    assert not called & {
        "torch.manual_seed",
        "torch.seed",
        "np.random.seed",
        "np.random.rand",
        "torch.set_num_threads",
        "nn.Dropout",
        "F.dropout",
        "nn.functional.dropout",
        "functional.dropout",
        "torch.dropout",
        "perf_counter",
    }
