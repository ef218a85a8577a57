"""Every kind of picture a person may bring becomes upright RGB, or is refused by name."""

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from armillary.errors import BadRequest
from armillary.media import read_clip, read_picture


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def corner_marked() -> np.ndarray:
    """24x16, red bar on the left and blue bar on top: no two of the eight orientations look alike."""
    pixels_HWC = np.full((16, 24, 3), 128, np.uint8)
    pixels_HWC[:, :4] = (220, 20, 20)
    pixels_HWC[:4, 8:] = (20, 20, 220)
    return pixels_HWC


BAKED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: np.rot90(a, 2),
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied_by_path_bytes_and_object(
    orientation: int, kind: str, tmp_path: Path
) -> None:
    image = Image.fromarray(corner_marked())
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}.get(kind, {})
    data = encoded(image, kind, exif=exif, **lossless)
    (tmp_path / "picture").write_bytes(data)
    expected = BAKED[orientation](corner_marked()).astype(int)
    for source in (data, tmp_path / "picture", str(tmp_path / "picture"), Image.open(io.BytesIO(data))):
        upright = read_picture(source)
        assert upright.dtype == np.uint8
        assert upright.shape == expected.shape
        assert np.abs(upright - expected).max() <= (8 if kind == "JPEG" else 0)


@pytest.mark.parametrize("orientation", [0, 9, 1000])
def test_an_orientation_that_does_not_exist_changes_nothing(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(corner_marked()), "PNG", exif=exif)
    assert np.array_equal(read_picture(data), corner_marked())


def test_alpha_is_laid_on_white() -> None:
    rgba = np.zeros((4, 4, 4), np.uint8)
    rgba[:2] = (200, 0, 0, 128)
    for source in (
        rgba,
        encoded(Image.fromarray(rgba), "PNG"),
        encoded(Image.fromarray(rgba), "WEBP", lossless=True),
    ):
        upright = read_picture(source)
        assert upright[3, 0].tolist() == [255, 255, 255]
        assert np.abs(upright[0, 0].astype(int) - (227, 127, 127)).max() <= 1


def test_grey_with_alpha_is_laid_on_white() -> None:
    grey_alpha = Image.merge("LA", (Image.new("L", (4, 4), 0), Image.new("L", (4, 4), 0)))
    assert (read_picture(encoded(grey_alpha, "PNG")) == 255).all()


@pytest.mark.parametrize("transparency", [1, bytes([255, 0])])
def test_transparent_palette_entries_are_white(transparency: int | bytes) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([200, 10, 10, 0, 0, 0])
    image.putpixel((0, 0), 0)
    upright = read_picture(encoded(image, "PNG", transparency=transparency))
    assert upright[0, 0].tolist() == [200, 10, 10]
    assert upright[3, 3].tolist() == [255, 255, 255]


def test_a_transparent_colour_key_is_white() -> None:
    image = Image.new("RGB", (4, 4), (0, 0, 0))
    image.putpixel((0, 0), (9, 8, 7))
    upright = read_picture(encoded(image, "PNG", transparency=(0, 0, 0)))
    assert upright[0, 0].tolist() == [9, 8, 7]
    assert upright[3, 3].tolist() == [255, 255, 255]


def test_one_bit_and_opaque_palette_pictures_become_rgb() -> None:
    bits = Image.new("1", (4, 4), 1)
    bits.putpixel((0, 0), 0)
    assert read_picture(encoded(bits, "PNG"))[:1, :2].tolist() == [[[0] * 3, [255] * 3]]
    palette = Image.fromarray(corner_marked()).quantize(8)
    assert np.abs(read_picture(encoded(palette, "PNG")).astype(int) - corner_marked()).max() <= 2


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_keeps_its_whole_range(kind: str) -> None:
    ramp = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
    for source in (ramp, encoded(Image.fromarray(ramp), kind)):
        upright = read_picture(source)
        assert np.array_equal(upright[..., 0], (ramp / 257).round())
        assert np.array_equal(upright[..., 0], upright[..., 2])


def test_cmyk_becomes_rgb() -> None:
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    upright = read_picture(encoded(cmyk, "JPEG", quality=95)).astype(int)
    assert np.abs(upright - (255, 0, 0)).max() <= 6


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_gives_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert np.abs(read_picture(data).astype(int) - (250, 0, 0)).max() <= 4


def test_arrays_pass_and_are_copied() -> None:
    array = corner_marked()
    upright = read_picture(array)
    assert np.array_equal(upright, array)
    upright[:] = 0
    assert array.any()
    assert read_picture(np.full((2, 3), 7, np.uint8)).shape == (2, 3, 3)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((2, 4, 4, 3), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_arrays_of_unknown_meaning_are_refused(array: np.ndarray) -> None:
    with pytest.raises(BadRequest, match="image"):
        read_picture(array)


def test_a_pillow_picture_is_left_as_it_was() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(io.BytesIO(encoded(Image.fromarray(corner_marked()), "PNG", exif=exif)))
    read_picture(image)
    assert image.size == (24, 16)
    assert image.getexif()[0x0112] == 6


def png_claiming(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(60000, 60000), (10000, 10000), (9000, 9000)])
def test_a_huge_header_is_refused_before_decoding(size: tuple[int, int]) -> None:
    with pytest.raises(BadRequest, match=r"image=.*80,000,000 pixels"):
        read_picture(png_claiming(*size))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP"])
def test_a_truncated_picture_is_refused_by_name(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    for length in (len(data) // 2, len(data) - 128):
        with pytest.raises(BadRequest, match=r"photo='<\d+ bytes>'"):
            read_picture(data[:length], field="photo")
    assert read_picture(data).shape == (64, 64, 3)


def test_broken_png_data_are_refused() -> None:
    data = bytearray(encoded(Image.fromarray(corner_marked()), "PNG"))
    data[60] ^= 0xFF
    with pytest.raises(BadRequest, match="cannot be decoded"):
        read_picture(bytes(data))


@pytest.mark.parametrize("data", [b"", b"hello, world", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match="neither a picture nor a clip"):
        read_picture(data)


def test_paths_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="No such file"):
        read_picture(tmp_path / "missing.png")


def test_float_tiff_is_refused() -> None:
    data = encoded(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF")
    with pytest.raises(BadRequest, match="known white"):
        read_picture(data)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe may never begin; a device may never end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        for read in (read_picture, read_clip):
            with pytest.raises(BadRequest, match="is no file on a disk"):
                read(path)


def test_half_a_character_in_a_data_uri_is_refused() -> None:
    with pytest.raises(BadRequest, match="base64 is broken"):
        read_picture("data:image/png;base64,iVBO\ud800")


def test_a_comment_that_looks_like_high_range_changes_nothing() -> None:
    image, comment = (
        Image.new("RGB", (8, 8), (200, 100, 50)),
        b"cICP\x09\x10\x10\x00\x01 colrnclx" + b"\x10" * 9,
    )
    plain, noted = io.BytesIO(), io.BytesIO()
    image.save(plain, "JPEG")
    image.save(noted, "JPEG", comment=comment)
    assert np.array_equal(read_picture(noted.getvalue()), read_picture(plain.getvalue()))
