"""Rank code runs in every world only if it keeps the rules: no clock but `comm.now`, no global randomness, no MPI."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dlpar

ROOT = Path(dlpar.__file__).parent
RANK_CODE = sorted(
    [path for path in ROOT.glob("*.py") if path.stem != "__init__"]  # which names what a notebook needs
    + [
        path
        for room in ("data", "comm", "collectives", "compression", "sync", "split")
        for path in (ROOT / room).glob("*.py")
    ]
)
WORLDS = ("mpi4py", "torch.distributed", "dlpar.worlds", "dlpar.jobs")


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
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            # Buffers without data are ghosts: no branch may tell them from tensors.
            assert "Tensor" not in ast.unparse(node.args[1]), f"{path.name}:{node.lineno}"
    assert not imported & {"time", "datetime", "random"}
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
