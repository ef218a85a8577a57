"""How much memory this process has to itself at most, stage by stage."""

import threading
from pathlib import Path
from typing import Self

from torch import nn


class Watch:
    """Looks every few milliseconds at the memory that no file stands behind (RssAnon); Linux only.

    peaks: bytes, by the stage that was going on (`stage` is yours to set).
    """

    def __init__(self, stage: str = "") -> None:
        self.stage, self.peaks = stage, dict[str, int]()
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.003):
            self.look()

    def look(self) -> int:
        now, stage = own_bytes(), self.stage
        self.peaks[stage] = max(self.peaks.get(stage, 0), now)
        return now

    def begins_with(self, module: nn.Module, stage: str) -> None:
        """It is `stage` from the first call of `module` on; while its weights come, it is "between".

        A stage begins once.
        """

        def leave(*_: object) -> None:
            if stage not in self.peaks:
                self.stage = "between"

        def begin(*_: object) -> None:
            if stage not in self.peaks:
                self.stage = stage
                self.look()

        module.register_forward_pre_hook(leave, prepend=True)
        module.register_forward_pre_hook(begin)


def own_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024
