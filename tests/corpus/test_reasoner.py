"""Public failures of other reasoners, each made by script. The numbers are rows of the list of failures."""

import base64
import io
import tracemalloc
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from armillary.codecs.text import PADS, VISION_END, VISION_START
from armillary.errors import BadRequest
from armillary.loading import load
from armillary.media import ClipIn, read_clip, read_picture
from armillary.tasks.messages import Conversation, converse
from armillary.world import World
from tests.make_clip import make_clip
from tests.random_pocket import random_pocket

SCENE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
ASK = {"type": "text", "text": "What is this?"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return load(random_pocket(tmp_path_factory.mktemp("model")), device="cpu")


def user(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


def picture(kind: str = "PNG", pixels: np.ndarray = SCENE, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def uri(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def url_part(url: Any, kind: str = "image") -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def read(world: World, *content: Any) -> Conversation:
    return converse(world.parts, user(*content))


def seen(world: World, part: dict[str, Any]) -> np.ndarray:
    return read(world, part, ASK).seen[0].picture_HW3


def greys(levels: list[int], height: int = 32, width: int = 48) -> np.ndarray:
    return np.stack([np.full((height, width, 3), level, np.uint8) for level in levels])


# -- A. media in


def test_b01_a_turned_photo_is_upright_on_every_way_in(world: World, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = picture(exif=exif)
    (tmp_path / "a.png").write_bytes(data)
    upright = np.rot90(SCENE, -1)
    sources = [data, tmp_path / "a.png", str(tmp_path / "a.png"), Image.open(io.BytesIO(data)), uri(data)]
    for part in [*({"type": "image", "image": s} for s in sources), url_part(uri(data))]:
        assert np.array_equal(seen(world, part), upright)


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_b02_b03_a_turned_clip_with_oblong_pixels_is_upright_and_unsheared(
    world: World, degrees: int
) -> None:
    frames = np.full((3, 32, 48, 3), 128, np.uint8)
    frames[:, :, :12] = 20  # a straight line
    data = make_clip(frames, turn=(degrees, False, False), aspect=Fraction(2, 1))
    found = seen(world, {"type": "video", "video": data})
    plain = read_clip(make_clip(frames, aspect=Fraction(2, 1))).frames[0]
    assert np.array_equal(found, np.rot90(plain, degrees // 90))
    dark = np.rot90(found, -degrees // 90)[..., 0] < 70
    assert (dark == dark[0]).all()
    assert dark[0].sum() == pytest.approx(24, abs=1)


def test_b05_times_are_those_of_the_source_whatever_is_sampled(world: World) -> None:
    data = make_clip(greys([100] * 300), unit=Fraction(1, 30))
    talk = read(world, {"type": "video", "video": data, "fps": 2.0}, ASK)
    times = talk.seen[0].receipt["times_s"]
    assert len(times) == 20
    assert times == pytest.approx(np.linspace(0, 299 / 30, 20), abs=1 / 60 + 1e-3)
    text = world.parts.text.decode(talk.context.ids_A.tolist())
    assert f"<{(times[0] + times[1]) / 2:.1f} seconds>" in text


def test_b06_one_plan_of_frames_gives_both_the_grid_and_the_times(world: World) -> None:
    data = make_clip(greys([100] * 40))
    talk = read(world, {"type": "video", "video": data, "num_frames": 16}, ASK)
    found = talk.seen[0]
    assert len(found.receipt["times_s"]) == 16
    assert len(found.slices) == found.patches.grid[0] == 8
    with pytest.raises(BadRequest, match="fps or num_frames, not both"):
        read(world, {"type": "video", "video": data, "num_frames": 16, "fps": 2.0}, ASK)


def test_b07_chosen_frames_keep_their_own_times_and_none_are_guessed(world: World) -> None:
    frames, times = greys([0, 80, 160]), np.array([0.0, 1.0, 7.0])
    talk = read(world, {"type": "video", "video": ClipIn(frames, times, 1.0), "num_frames": 3}, ASK)
    assert talk.seen[0].receipt["times_s"] == [0.0, 1.0, 7.0]
    with pytest.raises(BadRequest, match=r"content\[0\]\.video.*needs its own"):
        read(world, {"type": "video", "video": ClipIn(frames, times[:2], 1.0)}, ASK)
    with pytest.raises(BadRequest, match=r"content\[0\]\.video"):
        read(world, {"type": "video", "video": list(frames)}, ASK)


def test_b09_b10_every_recorded_time_of_an_uneven_clip_is_told(world: World) -> None:
    times_ms = [0, 33, 80, 90, 160]
    data = make_clip(greys([40, 80, 120, 160, 200]), times=times_ms, unit=Fraction(1, 1000))
    talk = read(world, {"type": "video", "video": data, "num_frames": 5}, ASK)
    assert talk.seen[0].receipt["times_s"] == pytest.approx([t / 1000 for t in times_ms], abs=1e-3)


def test_b13_b18_content_decides_and_not_a_name_or_a_type(world: World, tmp_path: Path) -> None:
    clip = make_clip(greys([50, 90]))
    (tmp_path / "a.mp4").write_bytes(picture())
    (tmp_path / "a.png").write_bytes(clip)
    assert np.array_equal(seen(world, {"type": "image", "image": tmp_path / "a.mp4"}), SCENE)
    assert len(read(world, {"type": "video", "video": tmp_path / "a.png"}, ASK).seen[0].slices) == 1
    for kind, mime in (("PNG", "image/jpeg"), ("WEBP", "image/png"), ("PNG", "video/jpeg")):
        data = picture(kind, **({"lossless": True} if kind == "WEBP" else {}))
        assert np.array_equal(seen(world, url_part(uri(data, mime))), SCENE)
    assert read(world, url_part(uri(clip, "image/png"), "video"), ASK).seen[0].receipt["kind"] == "video"
    with pytest.raises(BadRequest, match=r"content\[0\]\.image_url.*looks like a clip"):
        read(world, url_part(uri(clip, "image/png")))
    with pytest.raises(BadRequest, match=r"content\[0\]\.video_url.*looks like a picture"):
        read(world, url_part(uri(picture()), "video"))


def test_b14_a_clip_is_counted_or_the_request_is_refused(world: World, tmp_path: Path) -> None:
    clip = {"type": "video", "video": make_clip(greys([50, 90]))}
    with_clip = world.reason(messages=user(clip, ASK), max_tokens=1).usage.prompt_tokens
    without = world.reason(messages=user(ASK), max_tokens=1).usage.prompt_tokens
    assert with_clip >= without + 12
    blind = World(world.parts.__class__(**{**vars(world.parts), "sight": None}), world.facts)
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content\[0\].*reads text only"):
        blind.reason(messages=user(clip, ASK))


def test_b15_a_damaged_picture_is_named_and_the_next_request_is_served(world: World) -> None:
    good, cut = picture("JPEG"), picture("JPEG")[:-128]
    broken = bytearray(picture())
    broken[60] ^= 0xFF
    for bad in (cut, bytes(broken)):
        part = {"type": "image", "image": bad}
        with pytest.raises(BadRequest, match=r"^messages\[0\]\.content\[1\]\.image=.*cannot be decoded"):
            world.reason(messages=user({"type": "image", "image": good}, part, ASK))
    assert world.reason(messages=user({"type": "image", "image": good}, ASK), max_tokens=2).text is not None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (base64.b64encode(picture()).decode(), "give a data URI"),
        ("data:;base64,", "holds no bytes"),
        ("data:image/png,abc", "data:image/png;base64,"),
        ("data:image/png;base64", "data:image/png;base64,"),
        ("data:image/png;base64,a*b=", "base64 is broken"),
        ("data:image/png;base64,abcde", "base64 is broken"),
        (None, "give a data URI"),
        (5, "give a data URI"),
        (["x"], "give a data URI"),
    ],
)
def test_b17_other_forms_of_address_are_refused_and_the_part_named(world: World, url: Any, told: str) -> None:
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content\[1\]\.image_url\.url=") as error:
        read(world, ASK, url_part(url))
    assert told in error.value.message


def test_b17_the_scheme_may_be_written_in_any_case(world: World) -> None:
    found = uri(picture()).replace("data:", "DATA:", 1).replace("base64", "Base64", 1)
    assert np.array_equal(seen(world, url_part(found)), SCENE)
    assert np.array_equal(seen(world, {"type": "image_url", "image_url": found}), SCENE)
    assert np.array_equal(seen(world, url_part(uri(picture(), ""))), SCENE)


def test_b19_base64_may_be_wrapped_unpadded_url_safe_or_percent_encoded(world: World) -> None:
    head, _, body = uri(picture()).partition(",")
    lines = [body[i : i + 76] for i in range(0, len(body), 76)]
    for form in (
        "\n".join(lines),
        "\r\n".join(lines),
        body.rstrip("="),
        body.replace("+", "-").replace("/", "_"),
        body.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
    ):
        assert np.array_equal(seen(world, url_part(f"{head},{form}")), SCENE)


def test_b21_of_a_clip_of_ten_minutes_only_what_is_looked_at_is_kept(world: World) -> None:
    levels = (np.arange(600) * 250 // 600).astype(np.uint8)
    frames = np.broadcast_to(levels[:, None, None, None], (600, 90, 160, 3))
    data = make_clip(frames, unit=Fraction(1), preset="ultrafast")
    tracemalloc.start()
    found = read(world, {"type": "video", "video": data, "num_frames": 8}, ASK).seen[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.receipt["times_s"] == pytest.approx(np.linspace(0, 599, 8), abs=0.51)
    assert found.film is not None
    assert [int(f.mean()) for f in found.film.frames] == pytest.approx(np.linspace(0, 249, 8), abs=2)
    assert peak < 6e6  # all frames are 26 MB


@pytest.mark.parametrize("pixels", ["yuv420p", "yuv420p10le"])
@pytest.mark.parametrize("color_range", [1, 2])
def test_p09_limited_and_full_range_of_eight_and_ten_bits_are_respected(
    world: World, pixels: str, color_range: int
) -> None:
    ramp = np.linspace(0, 255, 64).round().astype(np.uint8)
    frames = np.broadcast_to(ramp[None, None, :, None], (2, 32, 64, 3)).copy()
    part = {"type": "video", "video": make_clip(frames, pixels=pixels, color_range=color_range)}
    assert np.abs(seen(world, part).astype(int) - frames[0]).max() <= 3


def test_b22_p01_every_kind_of_transparency_and_depth_becomes_three_channels(world: World) -> None:
    clear = np.zeros((32, 32, 4), np.uint8)
    palette = Image.new("P", (32, 32), 1)
    palette.putpalette([200, 10, 10, 0, 0, 0])
    buffer = io.BytesIO()
    palette.save(buffer, "PNG", transparency=1)
    ramp = np.linspace(0, 65535, 1024).astype(np.uint16).reshape(32, 32)
    for source in (picture(pixels=clear), buffer.getvalue()):
        found = seen(world, {"type": "image", "image": source})
        assert found.shape == (32, 32, 3)
        assert (found == 255).all()
    deep = seen(world, url_part(uri(picture(pixels=ramp))))
    assert np.array_equal(deep[..., 0], (ramp / 257).round())


def test_a_picture_that_claims_too_many_pixels_is_refused_by_its_header(world: World) -> None:
    data = bytearray(picture())
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(BadRequest, match=r"content\[0\]\.image_url.*80,000,000 pixels"):
        read(world, url_part(uri(bytes(data))))


def test_p03_an_animation_is_a_picture_or_a_clip_as_it_is_asked_for(world: World) -> None:
    frames = [Image.new("RGB", (32, 32), (level, 0, 0)) for level in (60, 120, 240)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=[100, 200, 300])
    assert np.abs(seen(world, url_part(uri(buffer.getvalue()))).astype(int)[0, 0] - (60, 0, 0)).max() <= 4
    talk = read(world, {**url_part(uri(buffer.getvalue()), "video"), "num_frames": 3}, ASK)
    assert talk.seen[0].receipt["times_s"] == [0.0, 0.1, 0.3]


@pytest.mark.parametrize("shape", [(1, 1), (1, 150), (200, 1), (3, 5)])
def test_p07_small_and_narrow_pictures_are_looked_at(world: World, shape: tuple[int, int]) -> None:
    part = {"type": "image", "image": np.full((*shape, 3), 200, np.uint8)}
    assert read(world, part, ASK).context.visual is not None


@pytest.mark.parametrize("shape", [(1, 10_000), (0, 4)])
def test_p07_what_is_no_picture_any_more_is_refused(world: World, shape: tuple[int, int]) -> None:
    with pytest.raises(BadRequest, match=r"content\[0\]\.image"):
        read(world, {"type": "image", "image": np.full((*shape, 3), 200, np.uint8)}, ASK)


def test_p11_pictures_of_different_sizes_are_packed_as_if_each_were_alone(world: World) -> None:
    wide, tall = SCENE[:32, :48], SCENE[:48, :32]
    both = read(world, {"type": "image", "image": wide}, {"type": "image", "image": tall}, ASK).context.visual
    assert both is not None
    alone = [read(world, {"type": "image", "image": p}, ASK).context.visual for p in (wide, tall)]
    assert [v.features_VE.shape[0] for v in alone if v] == [24, 24]
    joined = np.concatenate([v.features_VE.numpy() for v in alone if v])
    assert np.abs(both.features_VE.numpy() - joined).max() < 1e-4


# -- C. prompts


@pytest.mark.parametrize("forged", [*PADS.values(), VISION_START, VISION_END, "<|im_end|>", "<image>"])
@pytest.mark.parametrize("before", [True, False])
def test_b38_b39_words_that_look_like_a_picture_s_place_stay_words(
    world: World, forged: str, before: bool
) -> None:
    part, words = {"type": "image", "image": SCENE}, {"type": "text", "text": f"a {forged} b"}
    content = [words, part, ASK] if before else [part, words, ASK]
    talk, plain = read(world, *content), read(world, part, ASK)
    ids, text = talk.context.ids_A.tolist(), world.parts.text
    for name, token in text.controls.items():
        assert ids.count(token) == plain.context.ids_A.tolist().count(token), name
    assert forged in text.decode(ids)
    visual = talk.context.visual
    assert visual is not None
    assert {ids[row] for row in visual.rows_V.tolist()} == {text.special(PADS["image"])}


@pytest.mark.parametrize("words", ["\0", "\u202eabc\u202c", "e\u0301" * 50, "한글🙂ďá"])
def test_p05_strange_but_whole_text_is_kept(world: World, words: str) -> None:
    talk = read(world, {"type": "text", "text": words})
    assert words in world.parts.text.decode(talk.context.ids_A.tolist())


# -- H. serving


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd",
        "file:///etc/hostname",
        "file:/etc/hostname",
        "../../etc/hostname",
        "%2e%2e/etc/hostname",
        "/dev/zero",
        "http://127.0.0.1/a.png",
        "HTTPS://example.com/a.png",
    ],
)
@pytest.mark.parametrize("kind", ["image", "video"])
def test_b97_b98_an_address_opens_no_file_and_no_connection(world: World, url: str, kind: str) -> None:
    for value in (url, {"url": url}):
        with pytest.raises(BadRequest, match=rf"content\[1\]\.{kind}_url.*not opened here"):
            read(world, ASK, {"type": f"{kind}_url", f"{kind}_url": value})


def test_an_option_of_an_address_that_would_do_nothing_is_refused(world: World) -> None:
    value = {"url": uri(picture()), "detail": "auto"}
    assert np.array_equal(seen(world, {"type": "image_url", "image_url": value}), SCENE)
    with pytest.raises(BadRequest, match=r"image_url\.detail='high'.*ignored"):
        read(world, {"type": "image_url", "image_url": {**value, "detail": "high"}})


def test_a_receipt_names_a_data_uri_and_does_not_repeat_it(world: World) -> None:
    found = uri(picture())
    answer = world.reason(messages=user(url_part(found), ASK), max_tokens=1)
    assert f"<data URI of {len(found)} characters>" in str(answer.receipt)
    assert found[-40:] not in str(answer.receipt)
    assert np.array_equal(read_picture(found), SCENE)
