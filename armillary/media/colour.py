"""From the colours of a decoded frame to the 8-bit sRGB that everything here is in; high dynamic range too.

The matrix (BT.601, 709, 2020) and the range are those the stream names; BT.601 where it names none, as FFmpeg
takes it. The two curves of ITU-R BT.2100, PQ and HLG, are undone and the light is shown as BT.2408 shows it
in standard range: its reference white of 203 cd/m2 is white.

Legend: H height, W width, C channels.
"""

from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from armillary.media.source import Pixels, on_white

if TYPE_CHECKING:
    from av import VideoFrame

Floats = NDArray[np.float32]

PQ, HLG = 16, 18  # transfer characteristics of ITU-T H.273
P709, P2020, DISPLAY_P3 = 1, 9, 12  # colour primaries of ITU-T H.273
MATRIX_2020, FULL_RANGE = 9, 2
WHITE_NITS = 203.0
"""Reference white of a scene in high dynamic range, cd/m2: ITU-R BT.2408, table 1."""
PEAK_NITS = 1000.0
"""Peak of the display that HLG is shown on, cd/m2: with it, its system gamma is 1.2 (BT.2100, table 5)."""
KNEE = 0.9  # of reference white: up to here light is kept, above it is squeezed
BAND = 64  # rows at a time, so that floats never take more than a few rows' room

# Linear RGB of these primaries to linear RGB of BT.709, all with white D65: BT.2087 and SMPTE EG 432-1.
TO_709 = {
    P709: np.eye(3),
    P2020: np.array([[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]),
    DISPLAY_P3: np.array([[1.2249, -0.2247, 0.0], [-0.0420, 1.0419, 0.0], [-0.0197, -0.0786, 1.0979]]),
}
LUMINANCE_2020 = np.array([0.2627, 0.6780, 0.0593])


def frame_rgb(frame: "VideoFrame", width: int, height: int) -> Pixels:
    """A decoded frame at this size, sRGB uint8 [H, W, 3]; transparency lies on white."""
    clear = any(component.is_alpha for component in frame.format.components)
    shown = frame.to_ndarray(format="rgba" if clear else "rgb24", width=width, height=height)
    pixels_HWC = cast("Pixels", shown)
    if is_high_range(frame):
        pixels_HWC[..., :3] = tone_mapped(frame, width, height)
    return on_white(pixels_HWC) if clear else pixels_HWC


def is_high_range(frame: "VideoFrame") -> bool:
    """Whether the frame says that it is in PQ or HLG."""
    return frame.color_trc in (PQ, HLG)


def tone_mapped(frame: "VideoFrame", width: int, height: int) -> Pixels:
    """A frame in PQ or HLG as sRGB uint8 [H, W, 3].

    Decoded to light over WHITE_NITS; brought to the primaries of BT.709, what lies outside cut off at 0; the
    brightest channel x squeezed above KNEE to KNEE + (1 - KNEE) t / (1 + t), t = (x - KNEE) / (1 - KNEE), the
    others by the same factor so that no hue turns; encoded by IEC 61966-2-1. An 18 % grey card (26 cd/m2)
    becomes 100 of 255, reference white 249, 1000 cd/m2 255.
    """
    untagged = frame.colorspace == 2
    deep = frame.to_ndarray(
        format="rgb48le", width=width, height=height, src_colorspace=MATRIX_2020 if untagged else None
    )
    deep_HWC = cast("NDArray[np.uint16]", deep)
    primaries = TO_709.get(frame.color_primaries, TO_709[P2020])
    light, encoded = _light_of_codes(frame.color_trc, _white(frame)), _srgb_of_light()
    pixels_HWC = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, BAND):
        band_HWC = light[deep_HWC[top : top + BAND]]
        if frame.color_trc == HLG:
            band_HWC = _displayed(band_HWC)
        band_HWC = (band_HWC @ primaries.T.astype(np.float32)).clip(0)
        pixels_HWC[top : top + BAND] = encoded[(_squeezed(band_HWC) * 65535 + 0.5).astype(np.uint16)]
    return pixels_HWC


def _white(frame: "VideoFrame") -> int:
    """The code of a full signal in 16-bit RGB, as libswscale converts: it shifts numbers up and repeats no
    bits, and gives studio range the 255 of 8 bits."""
    if frame.format.is_rgb:
        return 65535
    bits = frame.format.components[0].bits
    return 65536 - (1 << (16 - bits)) if frame.color_range == FULL_RANGE else 255 << 8


def _light_of_codes(transfer: int, white: int) -> Floats:
    """For each of 65536 codes: PQ's light over WHITE_NITS, or HLG's scene light from 0 to 1 (BT.2100)."""
    code = (np.arange(65536) / white).clip(max=1)
    if transfer == PQ:  # table 4
        m1, m2, c1, c2, c3 = 2610 / 16384, 2523 / 32, 3424 / 4096, 2413 / 128, 2392 / 128
        root = code ** (1 / m2)
        light = 10_000 / WHITE_NITS * ((root - c1).clip(0) / (c2 - c3 * root)) ** (1 / m1)
    else:  # table 5
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        light = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
    return light.astype(np.float32)


def _displayed(scene_HWC: Floats) -> Floats:
    """HLG's scene light as a display of PEAK_NITS shows it, over WHITE_NITS: BT.2100, table 5, gamma 1.2."""
    luminance_HW1 = (scene_HWC @ LUMINANCE_2020.astype(np.float32))[..., None]
    return scene_HWC * (luminance_HW1**0.2 * (PEAK_NITS / WHITE_NITS)).astype(np.float32)


def _squeezed(light_HWC: Floats) -> Floats:
    brightest_HW1 = light_HWC.max(axis=2, keepdims=True).clip(KNEE)
    over_HW1 = (brightest_HW1 - KNEE) / (1 - KNEE)
    return light_HWC * ((KNEE + (1 - KNEE) * over_HW1 / (1 + over_HW1)) / brightest_HW1)


def _srgb_of_light() -> Pixels:
    """sRGB's code for light from 0 to 1 in 65536 steps: IEC 61966-2-1."""
    light = np.arange(65536) / 65535
    code = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return (code * 255).round().astype(np.uint8)
