"""`dlpar runs` and `dlpar show`: the runs kept on this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from cli.program import KEYS
from dlpar import Experiment, Run
from dlpar.cli import flags, main
from dlpar.config.paths import runs_folder


def test_runs_lists_what_there_is(finished, capsys):
    assert main(["runs", "--limit", "1000"]) == 0
    table = capsys.readouterr().out
    assert finished["run"] in table and "done" in table
    assert main(["runs", "--json", "--limit", "1000"]) == 0
    row = next(r for r in json.loads(capsys.readouterr().out) if r["run"] == finished["run"])
    assert row["accuracy"] == finished["accuracy"] and row["status"] == "done" and row["workers"] == 2


def test_runs_shows_the_settings_that_differ_and_the_world_of_each_rate(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    for number, (world, lr) in enumerate([("real", 0.1), ("simulated", 0.1), ("simulated", 0.25)]):
        make_run(f"20260101-{number}", Experiment(lr=lr, cluster={"world": world}), "done")
    assert main(["runs"]) == 0
    head, *rows, same = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "world", "lr", "status", "accuracy", "loss", "samples/s"]
    assert [row.split()[1:3] for row in rows] == [
        ["simulated", "0.25"],
        ["simulated", "0.1"],
        ["real", "0.1"],
    ]
    assert same == "the same in all: model mlp, data digits, sync ring, workers 4"


def test_runs_compares_a_setting_only_where_a_scheme_has_it_and_names_those_without_a_column(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    fields = dict(model={"width": 8}, batch=32, scaling="weak", shards="by_label", steps=9, lr=0.5, seed=1)
    make_run("20260101-1", Experiment(sync="mapreduce", optimizer="momentum", **fields), "done")
    make_run("20260101-2", Experiment(), "done")
    assert main(["runs"]) == 0
    said = capsys.readouterr().out
    assert said.split()[:4] == ["run", "sync", "width", "batch"] and "allreduce" not in said
    assert "they also differ in optimizer, seed" in said


def test_show_tells_all_about_a_run_and_how_to_repeat_it(finished, capsys, tmp_path):
    assert main(["show", finished["run"]]) == 0
    text = capsys.readouterr().out
    assert "all ranks finished" in text and "20 of 20" in text and "dlpar run --steps 20 --workers 2" in text
    assert main(["show", finished["run"], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {key: told[key] for key in KEYS} == finished
    assert told["status"] == "done" and told["errors"] == {} and Experiment(**told["experiment"]).workers == 2
    words = shlex.split(told["command"])
    assert words[:2] == ["dlpar", "run"] and words[2:] == flags.to_flags(Run(finished["run"]).experiment)


def test_show_says_which_all_reduce_auto_chose(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    summary = make_run("20260101-1", Experiment(), "done") / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"chosen": {"allreduce": ["star"]}}))
    assert main(["show", "20260101-1"]) == 0
    assert "star for 1 bucket" in capsys.readouterr().out


def test_show_exports(finished, capsys, tmp_path):
    tables, trace = tmp_path / "csv", tmp_path / "trace.json"
    assert main(["show", finished["run"], "--csv", str(tables), "--perfetto", str(trace)]) == 0
    assert len((tables / "steps.csv").read_text().splitlines()) == 1 + 2 * 20
    assert json.loads(trace.read_text())["traceEvents"]
    assert "written: " in capsys.readouterr().out


def test_a_run_whose_hostfile_is_gone_can_still_be_read(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    hostfile = tmp_path / "hosts"
    hostfile.touch()
    folder = make_run("29990101-000000-hosts", Experiment(cluster={"hostfile": str(hostfile)}), "done")
    hostfile.unlink()
    assert main(["show", folder.name]) == 0
    assert f"--hostfile {hostfile}" in capsys.readouterr().out


def _fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


TORN = b'{"k":"step","step":3,"t":0.1'
ODD = (b"[]", b"3", b"null", b'"k"', b"{}", b'{"k":"step"}', b'{"k":[1]}', b"[" * 5000, b"\xff\xfe", TORN)
DAMAGES = {
    **{f"line-{i}-{name}": (name, lambda path, line=line: path.write_bytes(line + b"\n" + path.read_bytes()))
       for i, line in enumerate(ODD) for name in ("job.jsonl", "rank-0.jsonl")},
    **{f"torn-{name}": (name, lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]))
       for name in ("job.jsonl", "rank-1.jsonl", "summary.json", "experiment.json")},
    **{f"empty-{name}": (name, lambda path: path.write_bytes(b""))
       for name in ("job.jsonl", "rank-1.jsonl", "summary.json", "experiment.json", "lock")},
    **{f"fifo-{name}": (name, _fifo)
       for name in ("job.jsonl", "rank-0.jsonl", "summary.json", "experiment.json", "lock", "log.txt")},
    **{f"list-{name}": (name, lambda path: path.write_bytes(b"[1, 2]"))
       for name in ("summary.json", "experiment.json")},
    **{f"foreign-{name}": (name, lambda path: path.write_bytes(b"\0" * 999))
       for name in ("rank-x.jsonl", "rank-.jsonl", "rank-99999999999.jsonl", "other.jsonl", "experiment.json")},
    "folder": ("rank-7.jsonl", lambda path: path.mkdir()),
    "text-for-number": (
        "rank-0.jsonl", lambda path: path.write_bytes(path.read_bytes().replace(b'"t":', b'"t":"x","u":'))
    ),
    **{f"nested-{name}": (name, lambda path: path.write_bytes(b"[" * 100_000))
       for name in ("experiment.json", "summary.json")},
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.filterwarnings("ignore:.*lines were omitted")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_shown_or_refused_in_a_sentence(damage, finished, capsys, tmp_path, monkeypatch):
    kept = Run(finished["run"]).path
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    folder = runs_folder() / kept.name
    shutil.copytree(kept, folder)
    name, harm = DAMAGES[damage]
    harm(folder / name)
    assert main(["runs"]) == 0
    for more in ([], ["--json"], ["--csv", str(tmp_path / "csv")]):
        status = main(["show", folder.name, *more])
        said = capsys.readouterr()
        assert status == 0 or (status == 2 and said.err.startswith("dlpar show: ")), said
        assert "Traceback" not in said.err


def test_a_reader_says_how_many_lines_it_left_out(finished, tmp_path, monkeypatch):
    kept = Run(finished["run"]).path
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    folder = runs_folder() / kept.name
    shutil.copytree(kept, folder)
    before = Run(folder).curve
    with open(folder / "rank-0.jsonl", "ab") as file:
        file.write(TORN + b"\n[]\n")
    with pytest.warns(UserWarning, match="rank-0.jsonl: unreadable lines were omitted: 2"):
        after = Run(folder).curve
    assert after.equals(before)


def test_escapes_in_a_log_or_a_name_do_not_reach_the_terminal(finished, capsys, tmp_path, monkeypatch):
    kept = Run(finished["run"]).path
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    folder = runs_folder() / f"{kept.name}\x1b[2J"
    shutil.copytree(kept, folder)
    with open(folder / "rank-0.jsonl", "ab") as file:
        file.write(TORN + b"\n")
    (folder / "summary.json").unlink()
    (folder / "log.txt").write_text("[rank 0] \x1b]0;title\x07\x1b[2J hello\n")
    assert main(["show", folder.name]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "\\x1b[2J hello" in said.out
    assert main(["runs"]) == 0 and main(["show", "nothing\x1b"]) == 2
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "\\x1b[2J" in said.out


def make_run(name: str, experiment: Experiment, status: str | None) -> Path:
    """A run folder as a finished job leaves it, without records of steps."""
    folder = runs_folder() / name
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(experiment.to_json())
    if status:
        end = {"k": "end", "at": 1.0, "status": status, "reason": "a reason", "rank": None}
        (folder / "job.jsonl").write_text(json.dumps(end) + "\n")
        figures = dict.fromkeys(KEYS) | {
            "run": name,
            "steps": 1,
            "accuracy": 0.5,
            "final_loss": 0.25,
            "samples_per_s": 1234.5,
            "seconds": {"compute": 1, "comm": 1, "wait": 1},
            "staleness": {"max": 0},
            "time_to_accuracy": {},
            "lead": {"max": 0, "bound": 0},
        }
        (folder / "summary.json").write_text(json.dumps(figures))
    return folder


@pytest.mark.slow
def test_a_thousand_runs_are_listed_in_a_moment(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    experiment = Experiment()
    for number in range(1000):
        make_run(f"20260101-{number:06d}", experiment, "done")
    began = time.process_time()
    assert main(["runs", "--limit", "1000"]) == 0
    assert time.process_time() - began < 2
    assert capsys.readouterr().out.count("1,230") == 1000
    assert main(["runs", "--limit", "5"]) == 0
    assert "and 995 older ones: dlpar runs --limit 1000" in capsys.readouterr().out


def test_runs_that_are_lost_or_damaged_are_listed_as_such(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    make_run("20260101-1", Experiment(deaths={"die": {2: 0.5}}), None)
    (make_run("20260101-2", Experiment(), "done") / "experiment.json").write_text("{")
    (make_run("20260101-3", Experiment(), "failed") / "summary.json").write_text("[]")
    assert main(["runs", "--json"]) == 0
    found = {row["run"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert found == {"20260101-3": "unreadable", "20260101-2": "unreadable", "20260101-1": "lost"}
    assert main(["show", "20260101-1"]) == 0
    assert "its launcher was killed, or the machine went down" in capsys.readouterr().out
    assert main(["show", "20260101-2"]) == 2
    assert "which this version cannot read (experiment: not valid JSON" in capsys.readouterr().err


def test_a_long_run_without_a_summary_is_shown_at_once(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    folder = make_run("20260101-1", Experiment(), None)
    with open(folder / "rank-0.jsonl", "wb") as file:
        file.truncate(200 << 20)
    (folder / "job.jsonl").write_text('{"k": "launch", "mode": "cold", "pid": 1}\n')
    with patch.object(Run, "records", side_effect=AssertionError), patch.object(Run, "summary", None):
        assert main(["show", folder.name]) == 0
    assert "210 MB, not summed up yet" in capsys.readouterr().out


def test_settings_are_listed_as_they_are_typed(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    for name, die in (("20260101-1", {2: 0.5}), ("20260101-2", {})):
        make_run(name, Experiment(deaths={"die": die}), "done")
    assert main(["runs"]) == 0
    second, first = capsys.readouterr().out.splitlines()[1:3]
    assert "2=0.5" in first and "{" not in second + first


def test_no_runs_yet(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "No runs yet: `dlpar run` makes one.\n"
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["resume"]) == 2
    said = "RUN: missing; allowed is a run folder or one of the ids `dlpar runs` lists\n"
    assert capsys.readouterr().err.endswith(said)
