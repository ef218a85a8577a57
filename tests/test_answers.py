"""Boxes, points and events found in what the model wrote, and drawn."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from armillary.answers import Answer, Box, Event, Film, Marks, Point, Trajectory, Usage, find_marks
from armillary.errors import BadRequest
from armillary.media.draw import COLOURS

SIZE = (50, 200)  # height, width
BOX = '{"bbox_2d": [100, 200, 500, 1000], "label": "red disc"}'
WANTED = Box(20, 10, 100, 50, "red disc")
NESTED = "[" * 3_000
STILL = Film(np.zeros((1, 8, 8, 3), np.uint8), (0.0,))


@pytest.mark.parametrize(
    "text",
    [
        f"[{BOX}]",
        BOX,
        f"Here it is:\n```json\n[\n  {BOX}\n]\n```\nDone.",
        f"Bare {BOX} in a sentence [1].",
        f'{{"objects": [{BOX}]}}',
        f'[{BOX}, {{"bbox_2d": [1, 2',  # cut by the token limit
        f"{NESTED}{BOX}",
    ],
)
def test_boxes_are_found_in_any_wrapping(text: str) -> None:
    assert find_marks(text, SIZE).boxes == (WANTED,)


def test_corners_are_put_in_order_and_kept_inside() -> None:
    text = '[{"bbox_2d": [600, -5, 100, 1200]}]'
    assert find_marks(text, SIZE).boxes == (Box(20, 0, 120, 50),)


@pytest.mark.parametrize(
    "item",
    [
        '{"bbox_2d": [1, 2, 3]}',
        '{"bbox_2d": [1, 2, 3, NaN]}',
        '{"bbox_2d": ["1", 2, 3, 4]}',
        '{"bbox_2d": [true, 2, 3, 4]}',
        '{"bbox_2d": null}',
        '{"point_2d": 5}',
        '{"start": 1}',
        '{"start": "soon", "end": "later"}',
        '{"start": 1, "end": [2]}',
        "no JSON { here ] at all",
        f'{{"bbox_2d": [{"1" * 400}, 2, 3, 4]}}',  # more than a float holds
        f'{{"bbox_2d": [{"1" * 5000}, 2, 3, 4]}}',  # more than Python reads
        f'{{"start": {"1" * 400}, "end": 2}}',
    ],
)
def test_what_is_malformed_gives_no_marks(item: str) -> None:
    assert find_marks(item, SIZE) == Marks()


def test_points_keep_their_order() -> None:
    text = '[{"point_2d": [0, 0], "label": "path"}, {"point_2d": [1000, 500]}, {"point_2d": [250, 100]}]'
    assert find_marks(text, SIZE).points == (Point(0, 0, "path"), Point(200, 25), Point(50, 5))


def test_points_whose_label_says_so_are_a_trajectory() -> None:
    path = [{"point_2d": [x, 500], "label": "gripper trajectory"} for x in (100, 300, 200)]
    marks = find_marks(json.dumps([*path, {"point_2d": [0, 0], "label": "cup"}]), SIZE)
    assert marks.trajectories == (Trajectory(((20, 25), (60, 25), (40, 25)), "gripper trajectory"),)
    assert marks.points == (Point(0, 0, "cup"),)
    alone = find_marks(json.dumps(path[:1]), SIZE)
    assert (len(alone.points), alone.trajectories) == (1, ())


def test_without_a_picture_there_are_events_only() -> None:
    marks = find_marks(f'[{BOX}, {{"start": 0.5, "end": 2, "caption": "it rolls"}}]', None)
    assert marks.boxes == ()
    assert marks.events == (Event(0.5, 2.0, "it rolls"),)


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [
        ("1.25", "3", (1.25, 3.0)),
        ('"00:01.50"', '"01:02.25"', (1.5, 62.25)),
        ('"1:00:01"', '"3601.5s"', (3601.0, 3601.5)),
    ],
)
def test_event_times_come_as_numbers_or_clock_strings(
    start: str, end: str, seconds: tuple[float, float]
) -> None:
    assert find_marks(f'{{"start": {start}, "end": {end}}}', None).events == (Event(*seconds),)


def answer(**marks: object) -> Answer:
    grey = np.full((50, 200, 3), 128, np.uint8)
    return Answer("text", Usage(1, 1), "stop", **({"picture": grey} | marks))  # pyright: ignore[reportArgumentType]


def test_drawing_paints_boxes_and_points_at_their_places(tmp_path: Path) -> None:
    answer(boxes=(Box(20, 10, 100, 40),), points=(Point(150, 20, "p"),)).draw(tmp_path / "a.png")
    drawn = np.asarray(Image.open(tmp_path / "a.png"))
    factor = drawn.shape[1] // 200
    changed = (drawn != 128).any(axis=2)
    for x, y in ((20, 25), (100, 25), (60, 10), (60, 40), (150, 20)):
        assert changed[y * factor, x * factor], (x, y)
    assert not changed[25 * factor, 60 * factor]


def test_a_trajectory_is_drawn_from_its_first_point_to_its_last(tmp_path: Path) -> None:
    answer(trajectories=(Trajectory(((20, 25), (100, 25), (180, 40)), "t"),)).draw(tmp_path / "a.png")
    drawn = np.asarray(Image.open(tmp_path / "a.png"))
    factor = drawn.shape[1] // 200
    changed = (drawn != 128).any(axis=2)
    for x, y in ((20, 25), (60, 25), (100, 25), (140, 32), (180, 40)):
        assert changed[round(y * factor), round(x * factor)], (x, y)
    assert not changed[10 * factor, 140 * factor]


def test_events_are_bars_on_the_time_axis_under_the_frames_seen(tmp_path: Path) -> None:
    film = Film(np.full((3, 64, 64, 3), 128, np.uint8), (0.0, 0.5, 2.0))
    first, second = Event(0.0, 0.5, "it slides"), Event(0.5, 2.0, "it stops")
    answer(events=(first, second), film=film).draw(tmp_path / "a.png")
    drawn = np.asarray(Image.open(tmp_path / "a.png"))
    widths = [(drawn == COLOURS[i]).all(axis=2).sum(axis=1).max() for i in (0, 1)]
    assert widths[1] == pytest.approx(3 * widths[0], abs=4)
    answer(events=(first,), film=film, boxes=(WANTED,)).draw(tmp_path / "both.png")
    assert np.asarray(Image.open(tmp_path / "both.png")).shape[0] > drawn.shape[0]


@pytest.mark.parametrize(
    ("marks", "name", "message"),
    [
        ({"picture": None, "boxes": (WANTED,)}, "a.png", "without a picture"),
        ({"events": (Event(0, 1),)}, "a.png", "no boxes"),
        ({}, "a.png", "no boxes, points or events"),
        ({"boxes": (WANTED,)}, "a.doc", "ends in"),
        ({"boxes": (WANTED,)}, "a.psd", "ends in"),  # Pillow reads it and writes none
        ({"events": (Event(0, 1),) * 1600, "film": STILL}, "a.jpg", "65500 a side"),
        ({"events": (Event(0, 1),) * 20_000, "film": STILL}, "a.png", "at most 2[0-9]{3} can be drawn"),
    ],
)
def test_an_answer_that_cannot_be_drawn_says_why(
    tmp_path: Path, marks: dict[str, object], name: str, message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        answer(**marks).draw(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_run_of_brackets_without_end_keeps_nobody_waiting() -> None:
    started = time.process_time()
    assert find_marks("[" * 100_000 + BOX, SIZE).boxes == (WANTED,)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("label", ["two\nlines", "x" * 100_000, "\n", "half \ud800", "a\0b"])
def test_any_label_can_be_drawn(tmp_path: Path, label: str) -> None:
    marks = {"boxes": (Box(20, 10, 100, 40, label),), "points": (Point(150, 20, label),)}
    started = time.process_time()
    answer(**marks, events=(Event(0, 1, label),), film=STILL).draw(tmp_path / "a.png")
    assert time.process_time() - started < 2
