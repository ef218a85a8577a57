"""Pictures in: files, bytes, Pillow pictures and arrays become upright RGB.

Legend: H height, W width, C channels.
"""

from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from armillary.errors import BadRequest
from armillary.media.colour import is_high_range, tone_mapped
from armillary.media.container import open_container
from armillary.media.source import (
    EXIF_TURNS,
    MAX_PIXELS,
    FileSource,
    Pixels,
    Turn,
    check_size,
    looks_like,
    on_white,
    open_binary,
    shown,
)

PictureSource: TypeAlias = FileSource | Image.Image | NDArray[Any]

# Named, because other formats may run programs (EPS).
PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
ORIENTATION_TAG = 0x0112
HEADER = 65536  # bytes in which a picture has told its colours
# What precedes the transfer characteristic (ITU-T H.273) in PNG (third edition, cICP) and in AVIF (nclx).
TRANSFER_MARKS = ((b"cICP", 5), (b"colrnclx", 11))


def read_picture(source: PictureSource, *, field: str = "image") -> Pixels:
    """Upright RGB uint8 [H, W, 3] of a path, bytes, Pillow picture or array.

    EXIF orientation is applied, transparency lies on white, 16-bit greys are scaled to 8, CMYK and palettes
    become RGB, PNG and AVIF in PQ or HLG are shown in standard range (`media/colour.py`), an animation gives
    its first frame (a Pillow picture the frame it stands at). Arrays are uint8 [H, W], [H, W, 3] or
    [H, W, 4], or uint16 [H, W]. Raises BadRequest naming `field` for anything else, for pictures over
    MAX_PIXELS (judged by the header) and for damaged ones.
    """
    if isinstance(source, np.ndarray):
        return _upright_rgb(_array_picture(source, field), field, source)
    if isinstance(source, Image.Image):
        return _upright_rgb(source, field, source)
    with open_binary(source, field) as file:
        bright = _high_range(file, field)
        return _upright_rgb(opened(file, field, source), field, source, bright)


def opened(file: IO[bytes], field: str, source: FileSource) -> Image.Image:
    """A picture of which only the header was read."""
    try:
        return Image.open(file, formats=PICTURE_FORMATS)
    except UnidentifiedImageError as error:
        kinds = ", ".join(PICTURE_FORMATS)
        message = f"cannot be read as one of {kinds}; it looks like {looks_like(file)}"
        raise BadRequest(field, shown(source), message) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadRequest(field, shown(source), f"more than {MAX_PIXELS:,} pixels") from error
    except Exception as error:
        raise BadRequest(field, shown(source), f"cannot be decoded: {error}") from error


def _array_picture(array: NDArray[Any], field: str) -> Image.Image:
    grey, colour = array.ndim == 2, array.ndim == 3 and array.shape[2] in (3, 4)
    if (array.dtype == np.uint8 and (grey or colour)) or (array.dtype == np.uint16 and grey):
        check_size(array.shape[1], array.shape[0], field, array)
        return Image.fromarray(array)
    found = f"{array.dtype} {list(array.shape)}"
    raise BadRequest(field, found, "arrays are uint8 [H, W], [H, W, 3] or [H, W, 4], or uint16 [H, W]")


def _upright_rgb(image: Image.Image, field: str, source: object, bright_HW3: Pixels | None = None) -> Pixels:
    check_size(*image.size, field, source)
    try:
        image.load()  # before the tag is read: some formats turn the pixels themselves
        orientation = image.getexif().get(ORIENTATION_TAG, 1)
        return EXIF_TURNS.get(orientation, Turn()).apply(_rgb(image, bright_HW3))
    except Exception as error:  # hostile bytes can make a decoder raise anything, always the picture's fault
        raise BadRequest(field, shown(source), f"cannot be decoded: {error}") from error


def _rgb(image: Image.Image, bright_HW3: Pixels | None) -> Pixels:
    """The picture as it is stored, in RGB; its colours from `bright_HW3` if that is given."""
    if image.mode.startswith(("I", "F")):
        return _rgb_of_deep_grey(np.asarray(image))
    mode = "RGBA" if image.has_transparency_data else "RGB"
    pixels_HWC = np.array(image.convert(mode))
    if bright_HW3 is not None:
        pixels_HWC[..., :3] = bright_HW3
    return on_white(pixels_HWC) if mode == "RGBA" else pixels_HWC


def _rgb_of_deep_grey(values_HW: NDArray[Any]) -> Pixels:
    if values_HW.dtype.kind == "f" or values_HW.min() < 0 or values_HW.max() > 65535:
        raise ValueError("only 8 and 16 bits a channel have a known white")
    grey_HW = ((values_HW.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    return np.repeat(grey_HW[..., None], 3, axis=2)


def _high_range(file: IO[bytes], field: str) -> Pixels | None:
    """The colours [H, W, 3] of a picture in PQ or HLG, from all of its bits, shown in standard range; None of
    any other picture. Pillow gives eight bits and no curve, so FFmpeg decodes these."""
    head = file.read(HEADER)
    file.seek(0)
    if not (head.startswith(b"\x89PNG") or head[4:8] == b"ftyp"):
        return None
    marks = ((head.find(mark), place) for mark, place in TRANSFER_MARKS)
    if not any(at >= 0 and head[at + place : at + place + 1] in (b"\x10", b"\x12") for at, place in marks):
        return None
    data = file.read()
    file.seek(0)
    with open_container(data, field, "png_pipe,mov") as container:
        frame = next(container.decode(video=0))
        return tone_mapped(frame, frame.width, frame.height) if is_high_range(frame) else None
