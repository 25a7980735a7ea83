"""The page's modules: types that fit, and nothing left of imports when they are joined to one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dlpar.course.curriculum import SelfTest
from dlpar.lab.page import HERE
from dlpar.lab.panel import RunPage
from dlpar.lab.prediction import Prediction

TSC = shutil.which("tsc") or shutil.which("tsc", path=Path(__file__).parents[2] / ".venv" / "bin")

OPTIONS = (
    "--allowJs", "--checkJs", "--noEmit", "--noUnusedLocals", "--noUnusedParameters",
    "--noImplicitReturns", "--noFallthroughCasesInSwitch", "--target", "es2022",
    "--module", "esnext", "--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable",
    "--strict", "false",
)  # fmt: skip


@pytest.mark.skipif(TSC is None, reason="TypeScript's tsc is not installed (npm install --global typescript)")
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
