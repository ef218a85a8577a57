"""Colours come in as they were meant: every matrix, range and depth, and high dynamic range by BT.2408.

Legend: H height, W width.
"""

import io
import zlib
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from armillary.errors import BadRequest
from armillary.media import read_clip, read_picture

# Weights of red and blue in luma, by the numbers of ITU-T H.273: BT.709, BT.470 and 601, BT.2020.
LUMA = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}
BARS = np.array(
    [
        *(
            (255, 255, 255),
            (191, 191, 0),
            (0, 191, 191),
            (0, 191, 0),
            (191, 0, 191),
            (191, 0, 0),
            (0, 0, 191),
        ),
        *((0, 0, 0), (128, 128, 128), (200, 90, 40)),
    ]
)
PQ, HLG = 16, 18
# Signal in percent of a grey card of 18 % and of reference white: ITU-R BT.2408, table 1.
GREY = {PQ: 38, HLG: 38}
WHITE = {PQ: 58, HLG: 75}
# Linear RGB of BT.709 in the primaries of BT.2020: ITU-R BT.2087.
TO_2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])


def patches(colours: np.ndarray) -> np.ndarray:
    """A picture [32, 16 n, 3] of upright bars."""
    return np.repeat(np.repeat(np.asarray(colours)[None], 32, axis=0), 16, axis=1)


def seen(pixels_HW3: np.ndarray) -> np.ndarray:
    """The colour in the middle of each bar: at their edges 4:2:0 blurs."""
    return pixels_HW3[16, 8::16].astype(int)


def ycbcr(rgb_HW3: np.ndarray, matrix: int, full: bool, bits: int) -> list[np.ndarray]:
    """Planes of RGB in [0, 1]: ITU-T H.273, 8.3."""
    red, blue = LUMA[matrix]
    y = rgb_HW3 @ (red, 1 - red - blue, blue)
    cb, cr = (rgb_HW3[..., 2] - y) / (2 - 2 * blue), (rgb_HW3[..., 0] - y) / (2 - 2 * red)
    step, most = 2 ** (bits - 8), 2**bits - 1
    if full:
        planes = y * most, cb * most + 128 * step, cr * most + 128 * step
    else:
        planes = (219 * y + 16) * step, (224 * cb + 128) * step, (224 * cr + 128) * step
    kind = np.uint8 if bits == 8 else np.uint16
    return [plane.round().clip(0, most).astype(kind) for plane in planes]


def fill(frame: Any, planes: list[np.ndarray]) -> None:
    for plane, values in zip(frame.planes, planes, strict=True):
        rows = np.zeros((plane.height, plane.line_size), np.uint8)
        raw = np.ascontiguousarray(values).view(np.uint8)
        rows[:, : raw.shape[1]] = raw
        plane.update(rows.tobytes())


def coded(
    rgb_HW3: np.ndarray,
    *,
    matrix: int = 9,
    full: bool = False,
    bits: int = 10,
    transfer: int = 2,
    primaries: int = 2,
    codec: str = "libx264",
    container: str = "mp4",
    tagged: bool = True,
) -> bytes:
    """One frame of RGB in [0, 1], its planes computed here and named in the stream."""
    y, cb, cr = ycbcr(rgb_HW3, matrix, full, bits)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        options = {"crf": "1"} if codec == "libx264" else {"crf": "1", "svtav1-params": "lp=1:avif=1"}
        video = output.add_stream(codec, rate=Fraction(8), options=options)
        video.height, video.width = y.shape
        video.pix_fmt = "yuv420p" if bits == 8 else "yuv420p10le"
        frame = av.VideoFrame(video.width, video.height, video.pix_fmt)
        for one in (video.codec_context, frame):
            one.colorspace, one.color_range = matrix if tagged else 2, 2 if full else 1
            one.color_trc, one.color_primaries = transfer, primaries
        fill(frame, [y, cb[::2, ::2], cr[::2, ::2]])
        frame.pts = 0
        output.mux(video.encode(frame))
        output.mux(video.encode(None))
    return buffer.getvalue()


def png(rgb_HW3: np.ndarray, transfer: int, alpha: bool = False) -> bytes:
    """16-bit PNG of RGB in [0, 1] that names BT.2020 and this curve."""
    name = "rgba64be" if alpha else "rgb48be"
    opaque_HW4 = np.concatenate([rgb_HW3, np.zeros_like(rgb_HW3[..., :1])], axis=2) if alpha else rgb_HW3
    context: Any = av.CodecContext.create("png", "w")
    context.height, context.width, context.pix_fmt = *rgb_HW3.shape[:2], name
    context.time_base, context.color_trc, context.color_primaries = Fraction(1), transfer, 9
    deep = (opaque_HW4 * 65535).round().astype(">u2")
    frame = av.VideoFrame.from_ndarray(deep.astype(np.uint16), format=name)
    frame.color_trc, frame.color_primaries = transfer, 9
    packets = [*context.encode(frame), *context.encode(None)]
    return b"".join(bytes(packet) for packet in packets)


def light_to_pq(nits: np.ndarray) -> np.ndarray:
    """SMPTE ST 2084, equation 5.2: written anew, the other way round."""
    y = (np.asarray(nits) / 10_000) ** 0.1593017578125
    return ((0.8359375 + 18.8515625 * y) / (1 + 18.6875 * y)) ** 78.84375


def srgb(light: np.ndarray) -> np.ndarray:
    light = np.asarray(light).clip(0, 1)
    return 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize("matrix", LUMA)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("bits", [8, 10])
def test_bars_in_every_matrix_range_and_depth_keep_their_colours(matrix: int, full: bool, bits: int) -> None:
    data = coded(patches(BARS) / 255, matrix=matrix, full=full, bits=bits)
    assert np.abs(seen(read_clip(data).frames[0]) - BARS).max() <= 3


def test_an_unnamed_matrix_is_that_of_standard_definition() -> None:
    data = coded(patches(BARS) / 255, matrix=6, bits=8, tagged=False)
    assert np.abs(seen(read_clip(data).frames[0]) - BARS).max() <= 3


@pytest.mark.parametrize("transfer", [1, 2, 6, 13, 14])
def test_standard_range_is_left_as_it_is(transfer: int) -> None:
    plain = read_clip(coded(patches(BARS) / 255)).frames
    named = read_clip(coded(patches(BARS) / 255, transfer=transfer, primaries=9)).frames
    assert np.array_equal(named, plain)


@pytest.mark.parametrize("transfer", [PQ, HLG])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("tagged", [False, True])
def test_grey_card_and_reference_white_land_where_bt_2408_puts_them(
    transfer: int, full: bool, tagged: bool
) -> None:
    signal = np.array([0, GREY[transfer], WHITE[transfer], 100]) / 100
    data = coded(
        patches(signal[:, None].repeat(3, 1)), full=full, transfer=transfer, primaries=9, tagged=tagged
    )
    found = seen(read_clip(data).frames[0])
    assert np.ptp(found, axis=1).max() <= 1  # grey stays grey
    assert found[:, 1] == pytest.approx([0, srgb(26 / 203), 249, 255], abs=3)


def test_a_ramp_of_light_keeps_its_order_and_its_shades_below_white() -> None:
    nits = np.array([0.5, 1, 2, 5, 10, 20, 50, 100, 150, 180, 203, 300, 600, 1000, 4000, 10_000])
    data = coded(patches(light_to_pq(nits)[:, None].repeat(3, 1)), transfer=PQ, primaries=9)
    found = seen(read_clip(data).frames[0])[:, 1]
    assert (np.diff(found) >= 0).all()
    kept = nits <= 180
    assert found[kept] == pytest.approx(srgb(nits[kept] / 203), abs=2)


@pytest.mark.parametrize("transfer", [PQ, HLG])
def test_colours_of_bt_709_survive_the_way_over_bt_2020(transfer: int) -> None:
    light = np.array([(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.8, 0.4, 0.1), (0.2, 0.5, 0.5)]) * 100.0
    wide = (light @ TO_2020.T).clip(0)
    if transfer == PQ:
        signal = light_to_pq(wide)
    else:  # BT.2100, table 5, from the display back: gamma 1.2, then the square root and the logarithm
        scene = wide / 1000 * ((wide / 1000) @ (0.2627, 0.678, 0.0593))[:, None] ** (1 / 1.2 - 1)
        with np.errstate(invalid="ignore"):
            above = 0.17883277 * np.log(12 * scene - 0.28466892) + 0.55991073
        signal = np.where(scene <= 1 / 12, np.sqrt(3 * scene), above)
    found = seen(read_clip(coded(patches(signal), transfer=transfer, primaries=9)).frames[0])
    wanted = srgb(light / 203)
    assert np.abs(found - wanted)[wanted > 0].max() <= 2
    assert found[wanted == 0].max() <= 12  # 10 bits are coarse so near to black


def test_bright_lights_keep_their_hue() -> None:
    light = np.array([[4000.0, 2000.0, 2000.0]])
    found = seen(read_clip(coded(patches(light_to_pq(light)), transfer=PQ, primaries=1)).frames[0])[0]
    assert found[0] >= 254
    assert found[1:] == pytest.approx(srgb(np.array([0.5, 0.5])), abs=3)


@pytest.mark.parametrize("transfer", [PQ, HLG])
def test_pictures_of_high_range_are_shown_as_clips_are(transfer: int) -> None:
    signal = np.array([0, GREY[transfer], WHITE[transfer], 100])[:, None].repeat(3, 1) / 100
    still = coded(
        patches(signal), transfer=transfer, primaries=9, codec="libsvtav1", container="avif", full=True
    )
    for data in (still, png(patches(signal), transfer)):
        found = seen(read_picture(data))
        assert found == pytest.approx(np.array([0, srgb(26 / 203), 249, 255])[:, None].repeat(3, 1), abs=3)


def test_a_clear_picture_of_high_range_lies_on_white() -> None:
    assert (read_picture(png(patches([[0.5, 0.5, 0.5]]), PQ, alpha=True)) == 255).all()


def test_a_deep_picture_of_standard_range_is_left_as_it_is() -> None:
    data = png(patches(BARS) / 255, 13)
    assert np.abs(seen(read_picture(data)) - BARS).max() <= 1


def test_a_picture_of_high_range_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    signal = patches(np.array([[0.0] * 3, [0.38] * 3]))
    data = png(signal, PQ)
    tag = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = b"eXIf" + tag
    at = data.index(b"cICP") - 4
    data = data[:at] + len(tag).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big") + data[at:]
    assert read_picture(data).shape == (signal.shape[1], signal.shape[0], 3)


def test_a_damaged_picture_of_high_range_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="photo"):
        read_picture(png(patches(BARS) / 255, PQ)[:300], field="photo")
