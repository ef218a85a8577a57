"""The loop: resumed equals unbroken, the rate follows its schedule, a broken loss stops the run."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from armillary.alone import alone
from armillary.errors import BadRequest
from armillary.train.loop import Draw, Metrics, Schedule, train


class Line:
    """Fits y = 2x + 1 from noisy points; every draw comes from the step."""

    def __init__(self, fail_at: int = -1) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        self.fail_at = fail_at
        self.seen: list[int] = []

    def optimizers(self, rate: float) -> list[Optimizer]:
        return [AdamW(self.model.parameters(), lr=rate)]

    def loss(self, draw: Draw, done: float) -> tuple[Tensor, Metrics]:
        self.seen.append(draw.step)
        x = torch.randn(16, 1, generator=draw.torch)
        loss = (self.model(x) - 2 * x - 1 + 0.1 * draw.python.random()).square().mean()
        return loss * (float("nan") if draw.step == self.fail_at else 1), {"loss": float(loss.detach())}


SCHEDULE = Schedule(steps=60, rate=0.05, warmup=5, decay=0.5)


def quiet(_: str) -> None:
    pass


def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path: Path) -> None:
    whole = train(Line(), SCHEDULE, tmp_path / "whole", tell=quiet)
    for _ in range(4):
        pieces = train(Line(), SCHEDULE, tmp_path / "pieces", tell=quiet, stop_after=17)
    for a, b in zip(whole.parameters(), pieces.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    a = train(Line(), SCHEDULE, tmp_path / "a", tell=quiet, seed=0)
    b = train(Line(), SCHEDULE, tmp_path / "b", tell=quiet, seed=1)
    assert not torch.equal(next(a.parameters()), next(b.parameters()))


def test_the_average_learns_the_line(tmp_path: Path) -> None:
    average = train(Line(), Schedule(400, 0.05, decay=0.5, average=0.9), tmp_path, tell=quiet)
    weight, bias = (float(p) for p in average.parameters())
    assert weight == pytest.approx(2.0, abs=0.05)
    assert bias == pytest.approx(0.95, abs=0.05)


def test_the_rate_warms_up_stays_and_falls_to_zero() -> None:
    rates = [SCHEDULE.rate_at(step) for step in range(61)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[10:30] == [0.05] * 20
    assert rates[45] == pytest.approx(0.025)
    assert rates[60] == 0


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_state(tmp_path: Path) -> None:
    train(Line(), SCHEDULE, tmp_path, tell=quiet, stop_after=10)
    kept = (tmp_path / "state.pt").read_bytes()
    with pytest.raises(FloatingPointError, match="step 20"):
        train(Line(fail_at=20), SCHEDULE, tmp_path, tell=quiet)
    assert (tmp_path / "state.pt").read_bytes() == kept


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    train(Line(), SCHEDULE, tmp_path, tell=quiet)
    again = Line()
    train(again, SCHEDULE, tmp_path, tell=quiet)
    assert again.seen == []


@pytest.mark.parametrize("cut", [0, 10, 700])
def test_a_state_cut_short_is_named(tmp_path: Path, cut: int) -> None:
    train(Line(), SCHEDULE, tmp_path, tell=quiet, stop_after=1)
    path = tmp_path / "state.pt"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadRequest, match=r"state=.*state\.pt': is damaged"):
        train(Line(), SCHEDULE, tmp_path, tell=quiet)


@pytest.mark.parametrize("part", ["model", "optimizers", "step", "average"])
def test_a_state_of_another_model_is_named(tmp_path: Path, part: str) -> None:
    train(Line(), SCHEDULE, tmp_path, tell=quiet, stop_after=1)
    path = tmp_path / "state.pt"
    content = torch.load(path, weights_only=True)
    torch.save({**content, part: {"weight": torch.zeros(2)}}, path)
    with pytest.raises(BadRequest, match="another model"):
        train(Line(), SCHEDULE, tmp_path, tell=quiet)
    torch.save([1, 2], path)
    with pytest.raises(BadRequest, match="holds no training"):
        train(Line(), SCHEDULE, tmp_path, tell=quiet)


def test_a_folder_is_trained_in_by_one_process_at_a_time(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(BadRequest, match="another process works in this folder"):
        train(Line(), SCHEDULE, tmp_path, tell=quiet, stop_after=1)
    train(Line(), SCHEDULE, tmp_path, tell=quiet, stop_after=1)
    train(Line(), SCHEDULE, tmp_path, tell=quiet, stop_after=1)


def test_a_person_can_look_each_time_after_the_state_is_saved(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def look(model: nn.Module, step: int) -> None:
        assert next(model.parameters()).isfinite().all()
        seen.append((step, (tmp_path / "state.pt").exists()))

    train(Line(), SCHEDULE, tmp_path, tell=quiet, save_every=0.0, stop_after=3, look=look)
    assert seen == [(1, True), (2, True), (3, True)]
