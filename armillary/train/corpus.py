"""The sentences that pocket's tokenizer is made for."""

from collections.abc import Iterator

from armillary.prompts import action_caption, with_metadata
from armillary.sim.scenes import Kind, episode

KINDS: tuple[Kind, ...] = ("still", "slide", "wander", "still", "slide", "wander", "slide", "push")
SIZE, FPS = 64, 8.0


def sentences(episodes: int = 1500) -> Iterator[str]:
    """Captions, instructions, questions and answers, bare and as the generator reads them."""
    for seed in range(episodes):
        e = episode(KINDS[seed % len(KINDS)], seed)
        for question in e.questions():
            yield question.text
            yield question.answer
        yield from as_prompts(e.caption, negative=seed % 4 == 0)
        yield from as_actions(e.instruction or "")
    for tenth in range(40):
        yield from [f"<{tenth / 10:.1f} seconds>", "user\n", "assistant\n", "system\n"] * 20


def as_prompts(text: str, *, negative: bool) -> Iterator[str]:
    for frames in (1, 9, 17):
        yield with_metadata(text, frames=frames, fps=FPS, height=SIZE, width=SIZE, negative=negative)


def as_actions(task: str) -> Iterator[str]:
    for frames in (9, 17):
        yield action_caption(task, view="top_down_2d_view", frames=frames, fps=FPS, height=SIZE, width=SIZE)
