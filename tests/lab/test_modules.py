"""The page's modules: types that fit, and nothing left of imports when they are joined to one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dlpar.course.curriculum import SelfTest
from dlpar.lab.page import HERE
from dlpar.lab.prediction import Prediction
from dlpar.lab.run_page import RunPage

TSC = shutil.which("tsc") or shutil.which("tsc", path=Path(__file__).parents[2] / ".venv" / "bin")

OPTIONS = (
    "--allowJs", "--checkJs", "--noEmit", "--noUnusedLocals", "--noUnusedParameters",
    "--noImplicitReturns", "--noFallthroughCasesInSwitch", "--target", "es2022",
    "--module", "esnext", "--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable",
    "--strict", "false",
)  # fmt: skip


@pytest.mark.skipif(TSC is None, reason="TypeScript's tsc is not installed (npm install --global typescript)")
@pytest.mark.slow
def test_types_of_the_modules_fit():
    modules = [str(path) for path in sorted(HERE.glob("*.js"))]
    found = subprocess.run([TSC, *OPTIONS, *modules], capture_output=True, text=True, timeout=120, cwd=HERE)
    assert found.stdout == "" and found.returncode == 0


@pytest.mark.parametrize("page", [RunPage, Prediction, SelfTest])
def test_modules_are_joined_to_one_that_imports_nothing(page, tmp_path):
    text = page._esm
    assert not re.search(r"^\s*import\b(?!\()", text, re.MULTILINE)
    assert re.findall(r"^export .*", text, re.MULTILINE) == ["export default () => {"]
    names = re.findall(r"^(?:async )?(?:const|let|class|function) (\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names)), "two modules use the same name"
    if node := shutil.which("node"):
        (tmp_path / "joined.mjs").write_text(text)
        subprocess.run([node, "--check", str(tmp_path / "joined.mjs")], check=True, timeout=60)


def asked(tmp_path, module, expression, *values):
    """What a module of the page answers, called by Node.js."""
    if not (node := shutil.which("node")):
        pytest.skip("Node.js is not installed")
    (tmp_path / f"{module}.mjs").write_text((HERE / f"{module}.js").read_text())
    script = f'import * as module from "./{module}.mjs"; console.log(JSON.stringify({expression}));'
    (tmp_path / "asked.mjs").write_text(f"const values = {json.dumps(values)};\n{script}")
    found = subprocess.run(
        [node, "asked.mjs"], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    return json.loads(found.stdout)


def columns(tmp_path, *runs, goal=0.9):
    return asked(tmp_path, "results", "module.columnsOf(values[0], values[1])", runs, goal)


def test_a_table_of_runs_has_the_columns_in_which_they_differ_and_no_others(tmp_path):
    run = {"world": "real", "samples/s": 100.0, "accuracy": 0.9, "to goal (s)": 1.5, "staleness mean": 0.0}
    run |= {"waiting (s)": 0.2, "final loss": 0.5, "MB sent": None, "steps": 20}
    names = [c["name"] for c in columns(tmp_path, run, {**run, "samples/s": 200.0})]
    assert names == ["samples/s", "accuracy", "final loss"]
    other = {**run, "staleness mean": 3.0, "to goal (s)": None, "waiting (s)": 0.1, "MB sent": 2.0}
    told = columns(tmp_path, run, {**other, "world": "paced"})
    assert [c["name"] for c in told] == list(run)[:6] and all(c["means"] for c in told)
    assert next(c["shown"] for c in told if c["name"] == "to goal (s)") == "to 90% (s)"
    sizes = {**run, "accuracy": None, "final loss": None}
    assert [c["name"] for c in columns(tmp_path, sizes, {**sizes, "samples/s": 2.0})] == ["samples/s"]


@pytest.mark.parametrize(
    "name, value, words",
    [("to goal (s)", None, "not reached"), ("MB sent", None, "–"), ("accuracy", 0.9512, "95.1%"),
     ("samples/s", 1234.5, "1,230"), ("final loss", 0.031249, "0.0312"), ("world", "paced", "paced")],
)  # fmt: skip
def test_a_result_is_written_for_readers(tmp_path, name, value, words):
    assert asked(tmp_path, "results", "module.inWords(values[0], values[1])", name, value) == words
