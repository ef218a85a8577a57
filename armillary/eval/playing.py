"""The policy in closed loop: it plays in the Gymnasium table-top, looking again after every chunk of actions.

Shape letters: T frames, H W height and width in pixels, S height and width of a shown frame.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw

from armillary.media import Clip
from armillary.media.draw import font
from armillary.media.source import Pixels
from armillary.robots import Actions
from armillary.sim.environment import TabletopEnv
from armillary.sim.language import outcome_question
from armillary.sim.physics import FPS, MAX_SPEED
from armillary.world import World

MOVES: Final = 16  # after which a start counts as failed: twice what the expert needs
SEEDS: Final = 1000  # between two decisions: more than the candidates of one
LAST: Final = 10**15  # number of a start: with it the seeds of decisions still are seeds
FILMED: Final = 20  # games in a film at most, each some 25 MB until it is written
SCALE, LINE, GAP = 4, 20, 8  # of the film: pixels a pixel, height of a line of text, space between things


@dataclass(frozen=True)
class Sight:
    """What a player sees before it decides: the picture, what it was told, and a seed of its own."""

    picture: Pixels
    instruction: str
    question: tuple[str, str]  # what to ask about an outcome, and the answer that means success
    seed: int


Player = Callable[[Sight], Actions]


@dataclass(frozen=True)
class Game:
    """One start as it was played: frames uint8 [T, H, W, 3], as imagined chunk by chunk and as they were.

    `imagined` is empty where the player imagined nothing.
    """

    instruction: str
    success: bool
    moves: int
    imagined: Pixels
    real: Pixels


def alone(world: World, *, show: bool = False) -> Player:
    """The policy as it is: one answer. `show` also imagines it, which takes longer."""

    def decide(seen: Sight) -> Actions:
        return world.policy(seen.instruction, seen.picture, domain="tabletop", decode=show, seed=seen.seed)

    return decide


def judged(world: World, candidates: int) -> Player:
    """The one of several answers whose imagined consequences the reasoner likes best."""

    def decide(seen: Sight) -> Actions:
        question, wanted = seen.question
        options: Any = {"candidates": candidates, "judge": question, "wanted": wanted, "seed": seen.seed}
        return world.policy(seen.instruction, seen.picture, domain="tabletop", **options)

    return decide


def at_random(world: World, candidates: int) -> Player:
    """One of the same answers as `judged` has, drawn blindly."""

    def decide(seen: Sight) -> Actions:
        chosen = int(np.random.default_rng(seen.seed).integers(candidates))
        options: Any = {"decode": False, "seed": seen.seed + chosen}
        return world.policy(seen.instruction, seen.picture, domain="tabletop", **options)

    return decide


def play(player: Player, episodes: Sequence[int]) -> Iterator[Game]:
    """The games from the starts of these numbers, of the test split, as they are played."""
    table = TabletopEnv()
    return (_game(table, player, number) for number in episodes)


def _game(table: TabletopEnv, player: Player, number: int) -> Game:
    seen, info = table.reset(options={"episode": number})
    goal = table.episode.goal
    assert goal is not None  # every push has one
    question = outcome_question(table.episode.objects, goal)
    over, moves = False, 0
    real, imagined = [seen["image"]], list[Pixels]()
    while not over and moves < MOVES:
        seed = (2 * number + moves // 8) * SEEDS
        actions = player(Sight(seen["image"], info["instruction"], question, seed))
        done = 0
        for action in actions.values:
            seen, _, over, _, info = table.step(np.clip(action, -MAX_SPEED, MAX_SPEED))
            real.append(seen["image"])
            done, moves = done + 1, moves + 1
            if over or moves == MOVES:
                break
        if actions.clip is not None:
            imagined += [*actions.clip.frames[: done + 1][int(bool(imagined)) :]]
    return Game(info["instruction"], over, moves, np.asarray(imagined), np.stack(real))


def film(games: Sequence[Game]) -> Clip:
    """The games one after another: what was imagined on the left, what happened on the right."""
    frames = [frame for game in games for frame in _filmed(game)]
    return Clip(np.stack(frames), FPS)


def _filmed(game: Game) -> list[Pixels]:
    """Each frame of a game under its labels, the last one held for a second."""
    size = game.real.shape[1] * SCALE
    result = f"{'success' if game.success else 'failed'} after {game.moves} moves"
    found = list[Pixels]()
    for t in [*range(len(game.real)), *[len(game.real) - 1] * int(FPS)]:
        sheet = Image.new("RGB", (2 * size + 3 * GAP, size + 2 * LINE + 2 * GAP), (250, 250, 250))
        pen, ended = ImageDraw.Draw(sheet), len(found) >= len(game.real)
        pen.text((GAP, 3), game.instruction, fill=(20, 20, 20), font=font(14))
        if ended:
            pen.text((2 * GAP + size, 3), result, fill=(20, 20, 20), font=font(14))
        for i, (name, pixels) in enumerate((("imagined", game.imagined), ("real", game.real))):
            left = GAP + i * (size + GAP)
            pen.text((left, LINE + 3), name, fill=(110, 110, 110), font=font(12))
            if len(pixels):
                tile = Image.fromarray(pixels[t]).resize((size, size), Image.Resampling.NEAREST)
                sheet.paste(tile, (left, 2 * LINE + GAP // 2))
        found.append(np.asarray(sheet))
    return found
