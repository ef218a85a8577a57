"""The clip people hold: saving by name, contact sheet, waveform, marks on a picture, the door's names."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import armillary.media
from armillary.errors import BadRequest
from armillary.media import Clip, draw_boxes, draw_points, read_clip, read_picture, read_receipt


def clip(count: int = 9, size: int = 64) -> Clip:
    frames = np.full((count, size, size, 3), (225, 205, 170), np.uint8)
    for k in range(count):
        frames[k, 20:30, 4 + 4 * k : 14 + 4 * k] = (220, 40, 30)
    sound = np.zeros((2, count * 2000), np.float32)
    sound[0, 4000:4100] = 0.8
    return Clip(frames, 8.0, sound, 16000, receipt={"seed": 3})


def test_saving_goes_by_the_suffix_and_keeps_the_receipt(tmp_path: Path) -> None:
    made = clip()
    for name in ("a.mp4", "a.GIF"):
        made.save(tmp_path / name)
        assert read_receipt(tmp_path / name) == {"seed": 3}
        assert len(read_clip(tmp_path / name).frames) == 9
    back = read_clip(tmp_path / "a.mp4", sound=True)
    assert back.sound is not None
    assert back.sound.shape == (2, 18000)
    assert back.fps == 8
    clip(1).save(str(tmp_path / "one.png"))
    assert np.array_equal(read_picture(tmp_path / "one.png"), clip(1).frames[0])
    assert read_receipt(tmp_path / "one.png") == {"seed": 3}


def test_a_png_of_many_frames_is_refused_and_the_sheet_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"holds one picture, not 9: .*clip\.sheet\(\)"):
        clip().save(tmp_path / "a.png")


@pytest.mark.parametrize(("name", "nearest"), [("a.mp3", ".mp4"), ("a.jpg", ".png"), ("a", ".mp4")])
def test_other_suffixes_are_refused_with_the_nearest(tmp_path: Path, name: str, nearest: str) -> None:
    with pytest.raises(BadRequest, match=rf"nearest: .*\{nearest}"):
        clip().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_clip_checks_what_it_holds() -> None:
    good = clip()
    for wrong in (
        {"frames": good.frames.astype(np.float32)},
        {"frames": good.frames[0]},
        {"fps": 0.0},
        {"fps": float("nan")},
        {"sound": good.frames[0, :, :, 0]},
        {"sample_rate": None},
    ):
        kept = {"frames": good.frames, "fps": 8.0, "sound": good.sound, "sample_rate": 16000}
        with pytest.raises(BadRequest, match=next(iter(wrong))):
            Clip(**(kept | wrong))
    assert good.duration_s == 9 / 8


def test_the_sheet_shows_every_frame_sharp_and_in_reading_order() -> None:
    made = clip()
    sheet = np.asarray(made.sheet(columns=3, scale=2))
    for index, frame in enumerate(made.frames):
        x, y = 8 + index % 3 * (128 + 8), 8 + index // 3 * (128 + 24)
        assert np.array_equal(sheet[y : y + 128 : 2, x : x + 128 : 2], frame)
        caption = sheet[y + 130 : y + 150, x : x + 128]
        assert caption.max() > 150  # the time is written below
    assert made.sheet().size == (4 * 200 + 8, 3 * 216 + 8)  # small frames are enlarged threefold


def test_the_sheet_shrinks_large_frames_and_takes_one() -> None:
    large = Clip(np.full((3, 360, 640, 3), 99, np.uint8), 24.0)
    width, height = large.sheet(columns=3).size
    assert width < 700
    assert height < 160
    assert clip(1).sheet().size == (208, 224)
    with pytest.raises(BadRequest, match="columns"):
        large.sheet(columns=0)
    with pytest.raises(BadRequest, match="scale"):
        large.sheet(scale=-1.0)


def test_the_waveform_shows_where_a_click_is() -> None:
    picture = np.asarray(clip().waveform()).astype(int)
    blue = np.abs(picture - (0, 114, 178)).sum(axis=2) == 0
    tall = np.flatnonzero(blue[:130].sum(axis=0) > 20)  # the first channel's band
    assert tall.min() == pytest.approx(40 + 960 * 4000 / 18000, abs=2)
    assert tall.max() == pytest.approx(40 + 960 * 4100 / 18000, abs=2)
    assert blue[140:].sum(axis=0).max() <= 1  # the second channel is silent
    with pytest.raises(BadRequest, match="no sound"):
        Clip(clip().frames, 8.0).waveform()


def test_the_waveform_of_a_quiet_sound_fills_its_band_and_says_its_peak() -> None:
    heights, pictures = [], []
    for peak in (0.0, 0.02, 0.24, 0.45, 0.6):
        quiet = clip()
        assert quiet.sound is not None
        quiet.sound[0] *= peak / 0.8
        pictures.append(np.asarray(quiet.waveform()).astype(int))
        blue = np.abs(pictures[-1] - (0, 114, 178)).sum(axis=2) == 0
        heights.append(blue[:131].any(axis=1).sum())
    assert heights == [1, 61, 61, 61, 37]  # half a band each, until the axis is the whole one
    corners = [picture[-24:, -200:].tobytes() for picture in pictures]
    assert len(set(corners)) == len(corners)  # "peak 0.24"
    assert all((picture[-24:, -140:] < 150).any() for picture in pictures)


def test_a_clip_shows_itself_in_one_line() -> None:
    assert repr(clip()) == "Clip(9 frames 64x64, 8 fps, 2 channels at 16000 Hz)"
    assert repr(Clip(np.zeros((1, 8, 16, 3), np.uint8), 7.5)) == "Clip(1 frame 16x8, 7.5 fps)"


def test_a_sound_shorter_than_the_picture_of_it_is_drawn() -> None:
    Clip(clip().frames, 8.0, np.zeros((1, 5), np.float32), 16000).waveform()
    Clip(clip().frames, 8.0, np.zeros((1, 0), np.float32), 16000).waveform()


def test_boxes_lie_where_they_were_said_to() -> None:
    image = np.full((64, 64, 3), 128, np.uint8)
    drawn = np.asarray(draw_boxes(image, [(10, 20, 30, 40)], labels=["disc"]))
    assert drawn.shape == (512, 512, 3)
    colour = np.abs(drawn.astype(int) - (230, 159, 0)).sum(axis=2) == 0
    rows, columns = np.nonzero(colour[160:322])
    assert (rows.min() + 160, rows.max() + 160) == (160, 320)
    assert (columns.min(), columns.max()) == (80, 240)
    assert colour[140:158, 80:120].sum() > 100  # the label above
    assert (image == 128).all()


def test_points_equal_labels_and_large_pictures() -> None:
    image = np.full((600, 800, 3), 128, np.uint8)
    drawn = np.asarray(draw_points(image, [(100, 100), (500, 300), (300, 599)], labels=["a", "b", "a"]))
    assert drawn.shape == (600, 800, 3)
    assert drawn[100, 100].tolist() == drawn[597, 300].tolist() == [230, 159, 0]
    assert drawn[300, 500].tolist() == [86, 180, 233]


@pytest.mark.parametrize("box", [(0, 0, 1), (5, 0, 1, 9), (0, 9, 1, 5), (0, 0, float("nan"), 5)])
def test_impossible_boxes_are_refused(box: tuple[float, ...]) -> None:
    with pytest.raises(BadRequest, match="boxes"):
        draw_boxes(Image.new("RGB", (8, 8)), [box])


def test_marks_and_labels_must_match_in_number() -> None:
    with pytest.raises(BadRequest, match="2 labels for 1 marks"):
        draw_boxes(Image.new("RGB", (8, 8)), [(0, 0, 4, 4)], labels=["a", "b"])
    with pytest.raises(BadRequest, match="points"):
        draw_points(Image.new("RGB", (8, 8)), [(0, float("inf"))])
    draw_boxes(Image.new("RGB", (8, 8)), [(-3, -3, 20, 20)], labels=["a very long label " * 9])


def test_the_door_names_what_it_offers_and_loads_neither_torch_nor_av() -> None:
    assert armillary.media.__all__ == sorted(armillary.media.__all__)
    assert all(hasattr(armillary.media, name) for name in armillary.media.__all__)
    code = "import sys, armillary.media; sys.exit(bool({'torch', 'av'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
