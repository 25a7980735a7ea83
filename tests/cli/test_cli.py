"""The program `dlpar` as a whole: help, version, commands, and what it refuses."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from conftest import eventually

import dlpar
from cli.program import PROGRAM, newest, program
from dlpar.cli import COMMANDS, STOPS, Stops, flags, main


def test_help_documents_every_flag_in_panels(capsys, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in flags.flags():
        line = next(line for line in text.splitlines() if f"{flag.spelling} " in line)
        assert flag.field.description[:40] in line
    for panel in (
        "Model: network to train",
        "Data: data set",
        "Training",
        "Sync: scheme",
        "Cluster: machines",
    ):
        assert f"─ {panel}" in text
    assert "One of mlp, linear, logistic, cnn, transformer. Default: mlp." in text
    assert "A whole number from 1 to 4096. Default: 4." in text


@pytest.mark.timed
def test_help_and_version_are_quick():
    for words in (["--help"], ["--version"], []):
        seconds = []
        for _ in range(5):  # the best of five: other processes may hold the cores
            began = time.monotonic()
            done = program(*words)
            seconds.append(time.monotonic() - began)
            if seconds[-1] < 0.7:
                break
        assert done.returncode == 0 and min(seconds) < 0.7
    assert all(command in done.stdout for command in ("run ", "runs ", "show ", "doctor "))


def test_the_entry_point_is_the_program():
    project = tomllib.loads((Path(dlpar.__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"dlpar": "dlpar.cli:main"}
    assert program("--version").stdout == f"dlpar {project['version']}\n"


def test_help_cuts_no_sentence_and_names_no_empty_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name}  " in listed and sentence in listed for name, (_, sentence) in COMMANDS.items())
    assert main(["run", "--help"]) == 0
    assert "Default: ." not in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_listed_with_the_first_sentence_of_its_help(name, capsys):
    assert main([name, "--help"]) == 0
    module, sentence = COMMANDS[name]
    command = getattr(import_module(f"dlpar.cli.{module}"), name)
    assert command.__doc__.startswith(f"{sentence}\n")
    said = capsys.readouterr().out
    assert f"Usage: dlpar {name} " in said and sentence in said and "Parameters" not in said


def test_a_reader_that_leaves_early_is_no_error(finished):
    command = f"{shlex.join(PROGRAM)} show {finished['run']} --json | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stdout == "{" and done.stderr == ""


# ---- stopping -------------------------------------------------------------------


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stops() as stops:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == stops._note
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_second_ctrl_c_interrupts_at_once(handlers):
    with Stops() as stops:
        signal.raise_signal(signal.SIGINT)
        assert stops.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_nothing_interrupts_the_last_words_of_a_command_that_was_told_to_stop(handlers):
    with Stops():
        signal.raise_signal(signal.SIGTERM)
    for number in STOPS:
        signal.raise_signal(number)


def test_an_interrupting_one_interrupts_once(handlers):
    with Stops(interrupting=True) as stops:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stops.asked == signal.SIGTERM


def test_a_complaint_about_a_long_word_is_short(capsys):
    for words in (["--", "x" * 100_000], ["show", "x" * 100_000], ["runs", "--" + "x" * 100_000]):
        assert main(words) in (1, 2)
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and len(said) < 1100


@pytest.mark.timeout(30)
def test_a_pipe_that_nobody_reads_is_refused(capsys, finished, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for words in (
        ["sweep", "--steps=2", "--csv"],
        ["sweep", "--figure"],
        ["show", finished["run"], "--perfetto"],
    ):
        assert main([*words, str(tmp_path / "pipe")]) == 1
        assert capsys.readouterr().err == f"dlpar {words[0]}: {tmp_path}/pipe: No such device or address\n"


@pytest.mark.parametrize("modules", ["nosuch", "nosuch, chords", "nosuch.module"])
def test_a_plug_in_that_python_does_not_find_is_refused_in_one_sentence(modules, capsys, monkeypatch):
    monkeypatch.setenv("DLPAR_PLUGINS", modules)
    assert main(["run", "--world", "simulated"]) == 2
    said = capsys.readouterr().err
    assert f"DLPAR_PLUGINS: got '{modules}', allowed are modules that Python finds" in said
    assert said.count("\n") == 1


def test_a_command_that_needs_the_labs_says_so_without_them():
    without = "import sys; sys.modules['anywidget'] = None; from dlpar.cli import main; sys.exit(main(['rehearse']))"
    told = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=60)
    assert told.returncode == 1 and told.stderr.count("\n") == 1
    assert "dlpar rehearse: " in told.stderr and "anywidget" in told.stderr
    assert "`pip install 'dlpar[lab]'` installs what labs need" in told.stderr


def test_ctrl_c_before_a_job_has_started_is_told(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dlpar.cli.runs.kept_runs", interrupted)
    assert main(["runs"]) == 130 and capsys.readouterr().err == "dlpar runs: stopped by Ctrl-C\n"


@pytest.mark.parametrize(
    "words, said",
    [
        (["--", "run"], "dlpar: got '--', allowed is one of run, "),
        (["slots", "--socket", "thesis.txt"], "--socket: got 'thesis.txt', allowed is a new path"),
        (["slots", "--longest", "x"], "--longest: got 'x', allowed is a number of at least 0.01"),
        (["run", "--experiment", "self.json"], "self: got 1, but there is no such field"),
        (["platforms", "./self.json"], "self"),
    ],
)
def test_odd_words_and_files_are_refused_and_stay(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.txt").write_text("precious")
    (tmp_path / "self.json").write_text('{"self": 1}')
    assert main(words) == 2 and said in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_job_of_a_program_without_standard_streams_is_known_to_be_running():
    """Its files would get the numbers of the streams, and lose them to those of child processes."""
    words = ["run", "--steps", "2000", "--delay", "constant", "--delay-ms", "20", "--workers", "2"]
    quoted, before = " ".join([*PROGRAM, *words]), {run.id for run in dlpar.runs()}
    shell = subprocess.Popen(["sh", "-c", f"exec {quoted} <&- >&- 2>&-"])
    try:
        run = eventually(lambda: (run := newest()) and run.id not in before and run, 30, "a run")
        assert run.status == "running"
    finally:
        shell.send_signal(signal.SIGINT)
        shell.wait(30)


def test_the_end_of_a_job_whose_folder_was_removed_names_no_records():
    """Its snapshots do not bring the folder back."""
    words = ["run", "--steps", "2000", "--delay", "constant", "--delay-ms", "20", "--workers", "2"]
    before = {run.id for run in dlpar.runs()}
    program = subprocess.Popen([*PROGRAM, *words, "--snapshot-every", "1"], stderr=subprocess.PIPE, text=True)
    try:
        run = eventually(lambda: (run := newest()) and run.id not in before and run, 30, "a run")
        # A rank may write a snapshot into a folder that is just being emptied: then once more.
        is_gone = lambda: shutil.rmtree(run.path, ignore_errors=True) or not run.path.exists()
        assert eventually(is_gone, 10, "the folder is removed")
        _, said = program.communicate(timeout=30)
    finally:
        program.terminate()
        program.wait(30)
    assert program.returncode == 1 and said.endswith("the run folder was removed while the job ran\n")
    assert not run.path.exists()
