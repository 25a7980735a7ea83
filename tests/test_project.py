"""What has to hold of the project's own files: one set of pins, no addresses, nothing left in notebooks."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
TARGETS = [
    "help",
    "lab",
    "hub",
    "release",
    "picture",
    "grade",
    "slides",
    "lint",
    "test",
    "quick",
    "bench",
    "gpu",
    "faults",
    "hostile",
    "setup",
    "clean",
]
CONDA_NAMES = {"pytorch": "torch"}  # conda-forge's name: the name in pyproject.toml

# Written in pieces, so that this file is not found by its own search.
REGISTRIES = [
    "pypi|org/simple",
    "pypi|python.org",
    "files|pythonhosted.org",
    "download|pytorch.org",
    "conda|anaconda.org",
    "repo|anaconda.com",
    "registry|npmjs.org",
    "registry|yarnpkg.com",
    "deb|debian.org",
    "archive|ubuntu.com",
]
REGISTRY = re.compile("|".join(re.escape(host.replace("|", ".")) for host in REGISTRIES))
OWN_PATH = re.compile(r"(?<![\w./~-])/(home|Users|root|work)/\w|\.\./" + "shared")


def project_files() -> list[Path]:
    """Every file of the project: what git tracks or would; in a copy without git, what .gitignore leaves."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0 and listing.stdout:
        return [ROOT / name for name in listing.stdout.split("\0") if (ROOT / name).is_file()]
    ignored = {".git", *(line.strip("/") for line in (ROOT / ".gitignore").read_text().split())}
    files = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ignored]
        files += [Path(folder, name) for name in names if name not in ignored]
    return files


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    """(path, content) of every file of the project that is text."""
    found = []
    for path in project_files():
        content = path.read_bytes()
        if b"\0" not in content:
            found.append((str(path.relative_to(ROOT)), content.decode("utf-8", errors="replace")))
    return tuple(found)


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    """file:line of every line of the project in which the pattern is found."""
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def notebook_faults(notebook: dict) -> list[str]:
    """What a notebook must not carry: widget state (large, and stale at once) and the output of an error."""
    faults = ["stores widget state"] if "widgets" in notebook.get("metadata", {}) else []
    for number, cell in enumerate(notebook["cells"]):
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                faults.append(f"cell {number} holds an error: {output.get('ename')}")
    return faults


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def conda() -> list:
    return yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def pins_of(requirements: list[str]) -> dict[str, str]:
    """{name: version}; a requirement that is not pinned by == fails."""
    pins = {}
    for requirement in requirements:
        pin = re.fullmatch(r"([A-Za-z0-9_.-]+)==([0-9][0-9a-z.]*)", requirement)
        assert pin, f"{requirement!r} is not a pin of the form name==version"
        pins[pin[1]] = pin[2]
    return pins


def test_environment_and_pyproject_hold_the_same_pins(project: dict, conda: list) -> None:
    extras = project["optional-dependencies"]
    wanted = pins_of(project["dependencies"] + extras["lab"] + extras["test"] + extras["grading"])
    from_pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert "-e ." in from_pip, "environment.yml must install the project itself"
    got = pins_of([entry for entry in from_pip if entry != "-e ."])
    for entry in conda:
        if isinstance(entry, str) and not re.match(r"(python|pip)\b", entry):
            name, version = re.fullmatch(r"([\w.-]+)==?([\w.]+)", entry).groups()
            got[CONDA_NAMES.get(name, name)] = version
    assert got == wanted


def test_the_torch_that_is_installed_is_one_of_those_that_the_readme_supports(project: dict) -> None:
    first, last = re.search(
        r"supports PyTorch (2\.\d+) to (2\.\d+)", (ROOT / "README.md").read_text()
    ).groups()
    minor = lambda version: int(version.split(".")[1])
    assert minor(first) <= minor(pins_of(project["dependencies"])["torch"]) <= minor(last)


def test_every_extra_is_pinned(project: dict) -> None:
    assert set(project["optional-dependencies"]) == {"lab", "test", "hub", "grading"}
    assert pins_of(project["optional-dependencies"]["hub"])["jupyterhub"].startswith("6.")


def test_environment_takes_the_oldest_python_that_the_project_takes(project: dict, conda: list) -> None:
    oldest = project["requires-python"].removeprefix(">=")
    assert f"python={oldest}" in conda


def test_no_file_carries_the_address_of_a_package_registry() -> None:
    assert REGISTRY.search("--index-url https://download." + "pytorch.org/whl/cpu")
    assert lines_with(REGISTRY) == []


def test_no_file_names_a_path_of_one_machine() -> None:
    assert OWN_PATH.search("see " + "/home/" + "ada/dlpar") and not OWN_PATH.search("https://a.org/home/page")
    assert lines_with(OWN_PATH) == []


def test_make_without_a_target_explains_every_target() -> None:
    def said(*target: str) -> str:
        command = ["make", "--no-print-directory", *target]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout

    assert said() == said("help")
    assert sorted(re.findall(r"^  make (\w+) +\w", said(), re.M)) == sorted(TARGETS)


@pytest.mark.slow
def test_bench_lists_its_sections_where_it_is_asked_for_another() -> None:
    done = subprocess.run(
        [sys.executable, "tests/bench", "nothing"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("bench: got 'nothing', allowed is any of launch, throughput, ring")


def test_no_notebook_stores_widget_state_or_an_error() -> None:
    error = {"output_type": "error", "ename": "KeyError"}
    bad = {"metadata": {"widgets": {}}, "cells": [{"outputs": [error]}]}
    assert notebook_faults(bad) == ["stores widget state", "cell 0 holds an error: KeyError"]
    found = {name: notebook_faults(json.loads(text)) for name, text in texts() if name.endswith(".ipynb")}
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.skipif(not Path(sys.prefix, "set-up").exists(), reason="this environment was not made by make")
def test_a_process_that_reads_notebooks_builds_no_grammars_first() -> None:
    code = "import sys, nbformat; print('lark' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) == "False\n"
