"""Data sets on disk: LeRobot v3 for clips with actions, JSON lines with media files for everything.

A folder appears whole or not at all: it is written under a temporary name and renamed when complete.
"""

import json
import shutil
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from armillary.errors import BadRequest
from armillary.media import write_mp4, write_png
from armillary.sim.physics import FPS, SIZE, Floats
from armillary.sim.scenes import Episode

DATA_PATH: Final = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH: Final = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH: Final = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_KEY: Final = "observation.images.top"

_CHUNK = 1000  # files in one folder
_IMAGE_STRIDE = 8  # every so many pixels suffice for the statistics of a picture


class Statistics:
    """Running minimum, maximum, mean, deviation and count of columns, one row a sample."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self._sum, self._squares = np.zeros(width), np.zeros(width)
        self._min, self._max = np.full(width, np.inf), np.full(width, -np.inf)

    def add(self, rows: NDArray[Any]) -> None:
        """Take in rows [K, width]."""
        values = rows.astype(np.float64)
        self.count += len(values)
        self._sum += values.sum(0)
        self._squares += (values**2).sum(0)
        self._min, self._max = np.minimum(self._min, values.min(0)), np.maximum(self._max, values.max(0))

    def to_dict(self, shape: tuple[int, ...] = (-1,)) -> dict[str, Any]:
        """The statistics as nested lists of `shape`."""
        mean = self._sum / self.count
        deviation = np.sqrt(np.maximum(self._squares / self.count - mean**2, 0.0))
        parts = {"min": self._min, "max": self._max, "mean": mean, "std": deviation}
        return {name: value.reshape(shape).tolist() for name, value in parts.items()} | {
            "count": [self.count]
        }


@contextmanager
def _appearing(folder: Path) -> Generator[Path]:
    """A folder to fill, beside `folder` under another name, which becomes `folder` if all goes well."""
    if folder.exists():
        raise BadRequest("folder", str(folder), "exists already; name a new one")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadRequest("folder", str(folder), f"{str(folder.parent)!r} is no folder") from None
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        _take_place(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _take_place(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        message = "appeared while this data set was made, and was left as it is; name a new one"
        raise BadRequest("folder", str(folder), message) from None


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _place(root: Path, pattern: str, number: int) -> Path:
    path = root / pattern.format(
        chunk_index=number // _CHUNK, file_index=number % _CHUNK, video_key=VIDEO_KEY
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


# LeRobot v3

_FEATURES: Final[dict[str, Any]] = {
    VIDEO_KEY: {
        "dtype": "video",
        "shape": [SIZE, SIZE, 3],
        "names": ["height", "width", "channels"],
        "info": {
            "video.height": SIZE,
            "video.width": SIZE,
            "video.channels": 3,
            "video.codec": "h264",
            "video.pix_fmt": "yuv420p",
            "video.fps": FPS,
            "video.is_depth_map": False,
            "has_audio": True,
        },
    },
    "observation.state": {"dtype": "float32", "shape": [2], "names": ["pusher_x", "pusher_y"]},
    "action": {"dtype": "float32", "shape": [2], "names": ["velocity_x", "velocity_y"]},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}


def write_lerobot(folder: str | Path, episodes: Iterable[Episode]) -> int:
    """Write clips with actions as a LeRobot v3 data set; returns how many.

    Each episode has one data file and one video file. Rows are frames; the last frame of an episode repeats
    the last action, since it has none of its own. The task is the instruction, or the caption of an
    undirected clip. Columns: state in px, action in px/s. Episodes are written as they come and not kept.
    Raises BadRequest for an existing folder, no episode, a clip without actions, or where PyArrow is not
    installed.
    """
    arrow, parquet = _pyarrow()
    with _appearing(Path(folder)) as root:
        writer = _LeRobot(root, arrow, parquet)
        for made in episodes:
            writer.add(made)
        writer.finish()
        return writer.count


def _pyarrow() -> tuple[Any, Any]:
    """PyArrow and its Parquet part, which only this layout needs. Raises BadRequest where not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        message = "needs PyArrow: pip install 'armillary[sim]'; or write jsonl, which does not"
        raise BadRequest("format", "lerobot", message) from None
    return pyarrow, parquet


class _LeRobot:
    def __init__(self, root: Path, arrow: Any, parquet: Any) -> None:
        self.arrow, self.parquet = arrow, parquet
        self.root, self.count, self.rows = root, 0, 0
        self.tasks: dict[str, int] = {}
        self.episodes = list[dict[str, Any]]()
        self.statistics = {name: Statistics(width) for name, width in _WIDTHS.items()}

    def add(self, made: Episode) -> None:
        if made.actions is None or made.pusher is None:
            raise BadRequest("episodes", made.kind, "LeRobot needs actions: use kinds push or wander")
        task = made.instruction or made.caption
        task_index = self.tasks.setdefault(task, len(self.tasks))
        columns = self._columns(made, made.actions, made.pusher, task_index)
        table = self.arrow.table({name: self._column(values) for name, values in columns.items()})
        self.parquet.write_table(table, _place(self.root, DATA_PATH, self.count))
        write_mp4(
            _place(self.root, VIDEO_PATH, self.count),
            made.frames,
            fps=made.fps,
            sound=made.sound,
            sample_rate=made.sample_rate,
        )
        self.episodes.append(self._episode_row(made, task, columns))
        self.count += 1
        self.rows += len(made.frames)

    def _columns(
        self, made: Episode, actions: Floats, pusher: Floats, task_index: int
    ) -> dict[str, NDArray[Any]]:
        length = len(made.frames)
        number = np.arange(length, dtype=np.int64)
        return {
            "observation.state": pusher,
            "action": np.concatenate([actions, actions[-1:]]),
            "timestamp": (number / made.fps).astype(np.float32),
            "frame_index": number,
            "episode_index": np.full(length, self.count, np.int64),
            "index": number + self.rows,
            "task_index": np.full(length, task_index, np.int64),
        }

    def _episode_row(self, made: Episode, task: str, columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
        chunk, file = divmod(self.count, _CHUNK)
        length = len(made.frames)
        row: dict[str, Any] = {
            "episode_index": self.count,
            "tasks": [task],
            "length": length,
            "dataset_from_index": self.rows,
            "dataset_to_index": self.rows + length,
            "data/chunk_index": chunk,
            "data/file_index": file,
            f"videos/{VIDEO_KEY}/chunk_index": chunk,
            f"videos/{VIDEO_KEY}/file_index": file,
            f"videos/{VIDEO_KEY}/from_timestamp": 0.0,
            f"videos/{VIDEO_KEY}/to_timestamp": length / made.fps,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        pixels = made.frames[:, ::_IMAGE_STRIDE, ::_IMAGE_STRIDE].reshape(-1, 3) / 255
        for name, values in {VIDEO_KEY: pixels, **columns}.items():
            rows = values.reshape(len(values), -1)
            self.statistics[name].add(rows)
            own = Statistics(rows.shape[1])
            own.add(rows)
            row |= {f"stats/{name}/{part}": value for part, value in own.to_dict(_shape(name)).items()}
        return row

    def finish(self) -> None:
        if not self.count:
            raise BadRequest("episodes", "none", "a data set needs at least one")
        write = self.parquet.write_table
        write(self.arrow.Table.from_pylist(self.episodes), _place(self.root, EPISODES_PATH, 0))
        write(self._task_table(), self.root / "meta/tasks.parquet")
        statistics = {name: s.to_dict(_shape(name)) for name, s in self.statistics.items()}
        _write_json(self.root / "meta/stats.json", statistics)
        _write_json(self.root / "meta/info.json", self._info())

    def _column(self, values: NDArray[Any]) -> Any:
        flat = self.arrow.array(values.reshape(-1))
        return flat if values.ndim == 1 else self.arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])

    def _task_table(self) -> Any:
        """The tasks as LeRobot's loader wants them: a pandas frame whose index is the text."""
        columns = [
            {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
            for name, kind, dtype in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
        ]
        note = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
        number, text = self.arrow.int64(), self.arrow.string()
        table = self.arrow.table(
            {
                "task_index": self.arrow.array(self.tasks.values(), number),
                "task": self.arrow.array(self.tasks, text),
            }
        )
        return table.replace_schema_metadata({"pandas": json.dumps(note | {"pandas_version": "2.2.0"})})

    def _info(self) -> dict[str, Any]:
        return {
            "codebase_version": "v3.0",
            "robot_type": "tabletop",
            "total_episodes": self.count,
            "total_frames": self.rows,
            "total_tasks": len(self.tasks),
            "chunks_size": _CHUNK,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": int(FPS),
            "splits": {"train": f"0:{self.count}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
            "features": _FEATURES,
        }


_WIDTHS = {name: 3 if name == VIDEO_KEY else feature["shape"][0] for name, feature in _FEATURES.items()}


def _shape(name: str) -> tuple[int, ...]:
    return (3, 1, 1) if name == VIDEO_KEY else (-1,)


# JSON lines


def write_jsonl(folder: str | Path, episodes: Iterable[Episode]) -> int:
    """Write `data.jsonl` and `media/*.png|mp4`, one line an episode; returns how many.

    A line holds: file (relative), kind, seed, caption, structured caption, questions, objects, boxes of every
    frame in px; for clips fps and events too; and actions and instruction where there are any. Episodes are
    written as they come and not kept. Raises BadRequest for an existing folder or no episode.
    """
    count = 0
    with _appearing(Path(folder)) as root, (root / "data.jsonl").open("w", encoding="utf-8") as lines:
        (root / "media").mkdir()
        for made in episodes:
            name = f"media/{count:06d}.{'mp4' if made.moving else 'png'}"
            if made.moving:
                write_mp4(
                    root / name, made.frames, fps=made.fps, sound=made.sound, sample_rate=made.sample_rate
                )
            else:
                write_png(root / name, made.picture())
            lines.write(json.dumps({"file": name, **_line(made)}, ensure_ascii=False) + "\n")
            count += 1
        if not count:
            raise BadRequest("episodes", "none", "a data set needs at least one")
    return count


def _line(made: Episode) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": made.kind,
        "seed": made.seed,
        "caption": made.caption,
        "structured": made.structured,
        "questions": [asdict(question) for question in made.questions()],
        "objects": [{"colour": o.colour, "shape": o.shape} for o in made.objects],
        "boxes": [made.boxes(i) for i in range(len(made.positions))],
    }
    if made.moving:
        found["fps"] = made.fps
        found["events"] = [asdict(event) for event in made.events]
    if made.actions is not None:
        found["actions"] = made.actions.tolist()
    if made.instruction:
        found["instruction"] = made.instruction
    return found
