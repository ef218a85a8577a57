"""Weights that a checkpoint holds in few bits: what its config says of them, and which of that is read here.

ModelOpt's FP8 stands for wider numbers, which is what `shards.py` makes of it. What `convert` rounds is kept
and used as it lies in the files; only Armillary reads that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from armillary.errors import BadRequest
from armillary.lowbit import Form

OWN = "armillary"  # the method by which `convert` rounds


def mark(form: Form | None) -> dict[str, Any]:
    """What a config says of towers that are stored so; nothing of plain ones."""
    return {"quantization_config": {"quant_method": OWN, "weights": form}} if form else {}


@dataclass(frozen=True)
class Quantised:
    """What a config's `quantization_config` says; of weights that are stored plainly it is empty."""

    told: Mapping[str, Any]

    @property
    def form(self) -> Form | None:
        """How the linear layers of both towers are stored, if `convert` rounded them."""
        forms: dict[object, Form] = {form: form for form in get_args(Form)}
        return forms.get(str(self.told.get("weights"))) if self.told.get("quant_method") == OWN else None

    @property
    def fp8(self) -> bool:
        kind = self.told.get("quant_algo") or self.told.get("quant_type")
        return self.told.get("quant_method") == "modelopt" and "FP8" in str(kind).upper()

    def check(self, folder: Path) -> None:
        """Raises BadRequest for weights that are quantised in a way that is not read here."""
        if self._strange is not None:
            raise BadRequest("model", str(folder), f"{self._strange}; load its branch `main`")

    @property
    def _strange(self) -> str | None:
        """Why its weights cannot be read, if they cannot."""
        if not self.told or self.fp8 or self.form is not None:
            return None
        told = (self.told.get(key) for key in ("quant_method", "quant_algo", "quant_type", "weights"))
        found = " ".join(str(word) for word in told if word)
        return f"its weights are quantised as {found}; FP8 by modelopt is read, and what `convert` writes"

    def settle(self, asked: Form | None) -> Form | None:
        """How the towers are held: as they are stored, else as is asked.

        Raises BadRequest for numbers that are rounded already and should be rounded in another way.
        """
        if self.form is not None and asked not in (None, self.form):
            message = f"this checkpoint is stored in {self.form}; leave it out, or take what it was made of"
            raise BadRequest("weights", asked, message)
        return self.form or asked

    @property
    def notes(self) -> list[str]:
        """What a person should know who loads them."""
        if self.form is not None:
            return [f"its towers are stored in {self.form}, which only Armillary reads"]
        if self._strange is not None:
            return [self._strange]
        if not self.told:
            return []
        policy = (self.told.get("runtime") or {}).get("diffusion_step_policy") or {}
        counts = [
            str((policy.get(key) or {}).get("count")) for key in ("first_steps", "last_steps") if policy
        ]
        asked = f"; its policy asks that of the first {counts[0]} and last {counts[1]}" if counts else ""
        return [f"holds FP8 weights: they are widened, and no step rounds activations to 8 bits{asked}"]
