import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from armillary.errors import BadRequest
from armillary.media import read_clip
from armillary.sim import episode, write_jsonl, write_lerobot


@pytest.fixture(scope="module")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets") / "pushes"
    made = [episode("push", 0), episode("push", 1), episode("wander", 0)]
    assert write_lerobot(folder, iter([*made, made[0]])) == 4
    return folder


def test_lerobot_rows_read_back_as_the_episodes(lerobot: Path):
    one = episode("push", 1)
    table = pq.read_table(lerobot / "data/chunk-000/file-001.parquet")
    assert one.actions is not None
    np.testing.assert_array_equal(np.stack(table["action"].to_numpy())[:-1], one.actions)
    np.testing.assert_array_equal(np.stack(table["observation.state"].to_numpy()), one.pusher)
    assert table["index"].to_pylist() == list(range(9, 18))
    np.testing.assert_allclose(table["timestamp"].to_numpy(), np.arange(9) / 8)


def test_lerobot_meta_data_agree_with_each_other(lerobot: Path):
    info = json.loads((lerobot / "meta/info.json").read_text())
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"]) == ("v3.0", 4, 36)
    assert info["fps"] == 8
    tasks = pq.read_table(lerobot / "meta/tasks.parquet").to_pylist()
    assert info["total_tasks"] == len(tasks) == 3
    # LeRobot's loader looks tasks up in the index of a pandas frame.
    note = json.loads(pq.read_schema(lerobot / "meta/tasks.parquet").metadata[b"pandas"])
    assert note["index_columns"] == ["task"]
    assert tasks[0] == {"task_index": 0, "task": episode("push", 0).instruction}
    episodes = pq.read_table(lerobot / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for number, row in enumerate(episodes):
        assert (row["episode_index"], row["length"]) == (number, 9)
        data = info["data_path"].format(
            chunk_index=row["data/chunk_index"], file_index=row["data/file_index"]
        )
        rows = pq.read_table(lerobot / data).to_pylist()
        assert {r["episode_index"] for r in rows} == {number}
        assert tasks[rows[0]["task_index"]]["task"] == row["tasks"][0]
        assert (rows[0]["index"], rows[-1]["index"] + 1) == (
            row["dataset_from_index"],
            row["dataset_to_index"],
        )
    assert info["features"].keys() >= {"action", "observation.state", "observation.images.top"}


def test_lerobot_statistics_are_those_of_the_rows(lerobot: Path):
    statistics = json.loads((lerobot / "meta/stats.json").read_text())
    actions = np.concatenate(
        [np.stack(pq.read_table(p)["action"].to_numpy()) for p in sorted(lerobot.glob("data/*/*.parquet"))]
    )
    for name, value in (("mean", actions.mean(0)), ("std", actions.std(0)), ("max", actions.max(0))):
        np.testing.assert_allclose(statistics["action"][name], value, rtol=1e-4, atol=1e-4)
    assert statistics["action"]["count"] == [36]
    assert np.shape(statistics["observation.images.top"]["mean"]) == (3, 1, 1)


def test_lerobot_videos_show_the_frames(lerobot: Path):
    clip = read_clip(lerobot / "videos/observation.images.top/chunk-000/file-001.mp4")
    difference = clip.frames.astype(int) - episode("push", 1).frames
    assert np.abs(difference).mean() < 3


def test_nothing_is_left_when_writing_fails(tmp_path: Path):
    with pytest.raises(BadRequest, match="actions"):
        write_lerobot(tmp_path / "set", [episode("push", 0), episode("slide", 0)])
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_never_touched(tmp_path: Path):
    with pytest.raises(BadRequest, match="exists"):
        write_jsonl(tmp_path, [episode("still", 0)])


def test_json_lines_carry_everything_and_name_their_media(tmp_path: Path):
    made = [episode("still", 2), episode("slide", 2), episode("push", 2)]
    assert write_jsonl(tmp_path / "set", made) == 3
    lines = [json.loads(line) for line in (tmp_path / "set/data.jsonl").read_text().splitlines()]
    for one, line in zip(made, lines, strict=True):
        assert (tmp_path / "set" / line["file"]).stat().st_size > 100
        assert line["caption"] == one.caption
        assert len(line["questions"]) == len(one.questions())
        assert np.shape(line["boxes"]) == (len(one.positions), len(one.objects), 4)
    assert "instruction" not in lines[1]
    assert np.shape(lines[2]["actions"]) == (8, 2)


def test_a_folder_that_appears_meanwhile_is_left_as_it_is(tmp_path: Path):
    def slow():
        yield episode("still", 0)
        (tmp_path / "set").mkdir()
        (tmp_path / "set/mine").touch()

    with pytest.raises(BadRequest, match="appeared while this data set was made"):
        write_jsonl(tmp_path / "set", slow())
    assert [file.name for file in tmp_path.rglob("*")] == ["set", "mine"]


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    for folder in ("file/set", "file/deep/set"):
        with pytest.raises(BadRequest, match="is no folder"):
            write_jsonl(tmp_path / folder, [episode("still", 0)])


@pytest.mark.parametrize(("form", "code"), [("jsonl", 0), ("lerobot", 2)])
def test_only_lerobot_needs_pyarrow(tmp_path: Path, form: str, code: int):
    script = f"""
import sys
sys.modules["pyarrow"] = None  # as if it were not installed
from armillary.cli import main
sys.argv = "armillary simulate --kind push --count 1 -o set --format {form}".split()
main()
"""
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=tmp_path, env=place
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "set").exists() == (code == 0)
    if code:
        assert done.stderr.startswith(
            "armillary: format='lerobot': needs PyArrow: pip install 'armillary[sim]'"
        )
        assert done.stderr.count("\n") == 1
