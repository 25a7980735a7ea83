"""Reading a run folder while it grows."""

from __future__ import annotations

import math

from dlpar.jobs.tail import Tail


def test_a_tail_reads_whole_lines_once(tmp_path):
    path, tail = tmp_path / "rank-0.jsonl", Tail(tmp_path)
    assert tail.read() == []
    path.write_bytes(b'{"k":"step","step":0}\n{"k":"st')
    assert tail.read() == [("rank-0", {"k": "step", "step": 0})]
    with path.open("ab") as file:
        file.write(b'ep","step":1,"loss":null}\nbroken\n{"k":"end"}\n')
    step, end = tail.read()
    assert step[1]["step"] == 1 and math.isnan(step[1]["loss"]) and end[1]["k"] == "end"
    assert tail.read() == []
