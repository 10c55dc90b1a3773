"""The view of a timeline: of a real job, of a killed one, and of Horovod's own form."""

import base64
import gzip
import json
import re

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from mpi import TORCH, launch
from typer.testing import CliRunner

from hvdlab import timeline
from hvdlab.cli import app
from hvdlab.timeline import draw, read

PROGRAM = """
import os, signal, time
import torch
import hvdlite.torch as hvd
hvd.init()
if hvd.rank() == 1:
    time.sleep(2)
hvd.allreduce(torch.ones(1000), name="waited-for")
handles = [hvd.allreduce_async_(torch.ones(10_000 + i), name=f"small.{i}") for i in range(8)]
for handle in handles:
    hvd.synchronize(handle)
if hvd.rank() == 1:
    %s
hvd.allreduce(torch.ones(5), name="last")
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = tmp_path_factory.mktemp("timeline") / "timeline.json"
    outcome = launch(PROGRAM % "pass", 2, env={"HOROVOD_TIMELINE": str(path)}, modules=TORCH)
    assert outcome.returncode == 0, outcome
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    path = tmp_path_factory.mktemp("killed") / "timeline.json"
    end = "time.sleep(3); os.kill(os.getpid(), signal.SIGKILL)"
    outcome = launch(PROGRAM % end, 2, timeout=180, env={"HOROVOD_TIMELINE": str(path)})
    assert outcome.returncode != 0
    return path


def phase(found: timeline.Timeline, name: str) -> timeline.Phase:
    return next(one for one in found.phases() if one.name == name)


def test_phases_bytes_and_fused_tensors_are_those_of_the_program(job):
    found = timeline.load(job)
    assert not found.truncated and not found.unfinished
    whole = phase(found, "ALLREDUCE")
    assert whole.tensors == 10
    assert whole.bytes == 4 * (1000 + 5 + sum(10_000 + i for i in range(8)))
    small = [s for s in found.spans if "small" in s.tensor and s.phase == "ALLREDUCE"]
    assert len({span.call for span in small}) < len(small) == 8  # some share a call
    for span in found.spans:
        assert 0 <= span.start <= span.end <= found.seconds


def test_the_late_rank_is_named_with_the_time_it_cost(job):
    late = timeline.load(job).late()
    times, seconds = late[1]
    assert times >= 1 and seconds >= 1
    assert seconds > 2 * late[0][1]


def test_a_killed_job_shows_what_never_finished(killed):
    found = timeline.load(killed)
    assert {span.tensor for span in found.unfinished} == {"allreduce.last"}
    assert "Never finished" in timeline.summary(found, found, killed)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_a_file_cut_anywhere_keeps_its_beginning(job, tmp_path, share):
    text = job.read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: int(share * len(text))])
    whole, part = timeline.load(job), timeline.load(cut)
    assert part.truncated
    assert 0 < len(part.spans) <= len(whole.spans)
    assert {(s.tensor, s.phase, s.start) for s in part.spans} <= {
        (s.tensor, s.phase, s.start) for s in whole.spans
    }


def test_horovods_own_form_with_a_comma_at_its_end(tmp_path):
    path = tmp_path / "horovod.json"
    path.write_text(
        '[\n{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad"}},\n'
        '{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 100, "pid": 1},\n'
        '{"ph": "X", "name": "0", "ts": 100, "pid": 1, "dur": 0},\n'
        '{"ph": "X", "name": "1", "ts": 600, "pid": 1, "dur": 0},\n'
        '{"ph": "E", "ts": 700, "pid": 1},\n'
        '{"ph": "B", "name": "ALLREDUCE", "ts": 700, "pid": 1},\n'
        '{"ph": "E", "ts": 900, "pid": 1, "args": {"dtype": "float16", "shape": "[2, 3]"}},\n'
    )
    found = timeline.load(path)
    assert phase(found, "ALLREDUCE").bytes == 12
    assert phase(found, "ALLREDUCE").seconds == pytest.approx(200e-6)
    assert found.late() == {0: (0, 0.0), 1: (1, pytest.approx(500e-6))}


@pytest.mark.parametrize("text", ["", "hello", "{}", '[{"a": 1}', "[1, 2, 3]", "[{", "[null]"])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path} is no timeline"):
        timeline.load(path)
    told = CliRunner().invoke(app, ["timeline", str(path)])
    assert told.exit_code == 1 and "is no timeline" in told.output


@pytest.mark.parametrize("text", ["[", "[\n\n]"])
def test_a_timeline_that_has_just_begun_is_empty(tmp_path, text):
    path = tmp_path / "file"
    path.write_text(text)
    assert not timeline.load(path).spans


BUCKETS = """
import torch
import hvdlite.torch as hvd
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Linear(50, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(2):
    optimizer.zero_grad()
    model(torch.ones(4, 100)).sum().backward()
    optimizer.step()
for same in [hvd.allreduce_async(torch.ones(1000), name=f"same.{n}") for n in range(3)]:
    hvd.synchronize(same)
"""


def test_a_part_of_a_bucket_does_not_claim_all_of_it(tmp_path):
    path = tmp_path / "buckets.json"
    outcome = launch(BUCKETS, 2, env={"HOROVOD_TIMELINE": str(path)}, modules=TORCH)
    assert outcome.returncode == 0, outcome
    whole = timeline.load(path)

    def moved(tensors: str) -> int:
        return phase(whole.part(0, whole.seconds, tensors), "ALLREDUCE").bytes

    steps = moved("") - 3 * 4000  # tensors of the same size, and no bucket
    model = 4 * (100 * 50 + 50 + 50 * 10 + 10)
    assert 2 * model <= steps < 2.1 * model  # a bucket has gaps
    assert moved("weight") == moved("bias") == 0  # not known
    assert moved("same") == 3 * 4000
    names = [read.in_bytes(number) for number in (0, 999, 4096, 3 << 20)]
    assert names == ["–", "999 B", "4.0 KiB", "3.00 MiB"]


def test_a_phase_has_one_colour_in_all_pictures(job):
    whole = timeline.load(job)
    colours = draw.colours(whole)
    assert len(set(colours.values())) == len(colours)
    for name in ("waited-for", "small", "last"):
        part = whole.part(0, whole.seconds, name)
        assert draw.colours(part).items() <= colours.items()


def test_the_file_can_be_downloaded_from_the_notebook(job, tmp_path, monkeypatch):
    whole = timeline.load(job)
    page = timeline.summary(whole, whole, job)
    (packed,) = re.findall(r"href='data:application/gzip;base64,([^']+)'", page)
    assert gzip.decompress(base64.b64decode(packed)) == job.read_bytes()
    assert "download='timeline.json.gz'" in page and "https://ui.perfetto.dev" in page
    monkeypatch.setattr(timeline, "MOST_BYTES", 10)
    assert "base64" not in timeline.summary(whole, whole, job)


def test_show_gives_a_chart_a_picture_and_tables(job):
    InteractiveShell.instance()
    with capture_output() as captured:
        timeline.show(job, tensors="small")
    (chart, tables) = [output.data for output in captured.outputs]
    spec = chart["application/vnd.vegalite.v5+json"]
    assert chart["image/png"] and "8 tensors" in chart["text/plain"]
    lanes = {value["tensor"] for value in spec["datasets"]["spans"]}
    assert lanes == {f"allreduce.small.{i}" for i in range(8)}
    assert json.dumps(spec)  # it goes into the notebook as it is
    html = tables["text/html"]
    assert "ui.perfetto.dev" in html and "rank 1" in html and "MEMCPY" not in spec["title"]


def test_a_part_of_it_keeps_to_its_bounds(job):
    whole = timeline.load(job)
    part = whole.part(0, whole.seconds, most=3)
    assert len(part.spans) == 3 and part.last < whole.last
    middle = whole.seconds / 2
    for span in whole.part(middle, whole.seconds).spans:
        assert span.end >= middle
    assert set(draw.colours(whole)) == {span.phase for span in whole.spans}


def test_the_command_prints_the_summary_and_refuses_other_files(job, tmp_path):
    told = CliRunner().invoke(app, ["timeline", str(job)], env={"COLUMNS": "150"})
    assert told.exit_code == 0 and "NEGOTIATE_ALLREDUCE" in told.output, told.output
    assert "https://ui.perfetto.dev" in told.output
    (tmp_path / "no.json").write_text("no")
    for name in ("no.json", "missing.json"):
        told = CliRunner().invoke(app, ["timeline", str(tmp_path / name)])
        assert told.exit_code == 1 and name in told.output
