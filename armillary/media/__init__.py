"""The media door: every picture and clip enters and leaves through here, upright, in RGB, with true times.

numpy and Pillow only; PyAV is imported by the functions that open a container, torch by none.
"""

from armillary.media.clip import Clip
from armillary.media.decode import ClipIn, ClipInfo, probe, read_clip, read_receipt
from armillary.media.draw import draw_boxes, draw_events, draw_paths, draw_points
from armillary.media.encode import frame_rate, write_gif, write_mp4, write_png
from armillary.media.pictures import read_picture

__all__ = [
    "Clip",
    "ClipIn",
    "ClipInfo",
    "draw_boxes",
    "draw_events",
    "draw_paths",
    "draw_points",
    "frame_rate",
    "probe",
    "read_clip",
    "read_picture",
    "read_receipt",
    "write_gif",
    "write_mp4",
    "write_png",
]
