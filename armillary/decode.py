"""From scores to tokens: how the next one is chosen, where an answer stops, and strings found across pieces.

Shape letters: A = tokens of the context, V = vocabulary, K = the likeliest of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from armillary.errors import BadRequest

MOST_TOLD = 20  # alternatives of a token
COLDEST = 1e-6  # temperatures below divide as this does: the likeliest token, or one of several as likely

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and when to stop. The default is greedy: the likeliest token each time."""

    max_tokens: int = 512
    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 keeps every token
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()  # end the answer, and are left out of it; thinking may hold them
    thinking_budget: int | None = None  # tokens of thinking, after which it is closed
    logprobs: int | None = None  # alternatives told with each token; None tells nothing

    def __post_init__(self) -> None:
        rules: tuple[tuple[str, bool, str], ...] = (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature <= 10, "0 (greedy) to 10"),
            ("top_k", self.top_k >= 0, "0 (every token) or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0, at most 1"),
            ("repetition_penalty", 0 < self.repetition_penalty <= 10, "more than 0 (1 is none), at most 10"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "-2 to 2 (0 is none)"),
            ("seed", 0 <= self.seed < 2**63, "0 to 2**63 - 1"),
            ("stop", all(self.stop), "no empty string"),
            ("thinking_budget", (self.thinking_budget or 0) >= 0, "0 or more tokens"),
            ("logprobs", 0 <= (self.logprobs or 0) <= MOST_TOLD, f"0 to {MOST_TOLD} alternatives"),
            (
                "top_k",
                self.temperature > 0 or not self.top_k,
                "greedy ignores it; give a temperature above 0",
            ),
            (
                "top_p",
                self.temperature > 0 or self.top_p == 1,
                "greedy ignores it; give a temperature above 0",
            ),
        )
        for field, holds, message in rules:
            if not holds:
                raise BadRequest(field, getattr(self, field), message)


class Sampler:
    """Chooses the tokens of one sequence; its randomness is its own, whatever is decoded beside it."""

    def __init__(self, sampling: Sampling, prompt_A: Tensor, vocabulary: int) -> None:
        self.sampling = sampling
        self._chosen = 0
        self._generator = torch.Generator().manual_seed(sampling.seed)
        self._said_V = torch.zeros(vocabulary, dtype=torch.bool)
        self._met_V = self._said_V.clone()
        self._met_V[prompt_A.cpu()] = True

    def choose(self, logits_V: Tensor, allowed_V: Tensor | None = None) -> int:
        """The next token: what is allowed, penalties, temperature, top-k, top-p, in this order, in fp32 on
        the CPU.

        A logit of -inf is a token that is never chosen. Raises FloatingPointError for NaN and +inf.
        """
        logits_V, self._chosen = logits_V.float().cpu(), self._chosen + 1
        if allowed_V is not None:
            logits_V = torch.where(allowed_V, logits_V, -math.inf)
        if not math.isfinite(float(logits_V.max())):  # the maximum of NaN and anything is NaN
            raise FloatingPointError(f"the logits of token {self._chosen} are not finite")
        logits_V = self._penalised(logits_V)
        token = int(logits_V.argmax()) if self.sampling.temperature == 0 else self._draw(logits_V)
        self._said_V[token] = self._met_V[token] = True
        return token

    def _penalised(self, logits_V: Tensor) -> Tensor:
        """Repetition (Keskar et al. 2019) weighs on prompt and answer, presence on the answer alone."""
        repetition, presence = self.sampling.repetition_penalty, self.sampling.presence_penalty
        if repetition != 1:
            strongest = torch.finfo(torch.float32).max  # or a small penalty makes infinities
            divided_V = (logits_V / repetition).clamp(max=strongest)
            weighed_V = torch.where(logits_V > 0, divided_V, logits_V * repetition)
            logits_V = torch.where(self._met_V, weighed_V, logits_V)
        return logits_V - presence * self._said_V if presence else logits_V

    def _draw(self, logits_V: Tensor) -> int:
        count = min(self.sampling.top_k or logits_V.shape[0], logits_V.shape[0])
        scaled_V = (logits_V - logits_V.max()) / max(self.sampling.temperature, COLDEST)
        kept_K, tokens_K = scaled_V.topk(count)
        chances_K = kept_K.softmax(dim=0)
        before_K = chances_K.cumsum(dim=0) - chances_K
        before_K[0] = -1.0  # the likeliest stays: fp32 holds some top_p as 0
        chances_K = torch.where(before_K < self.sampling.top_p, chances_K, 0.0)
        return int(tokens_K[torch.multinomial(chances_K, 1, generator=self._generator)])


def logprobs_of(logits_V: Tensor, token: int, count: int) -> tuple[tuple[int, float], ...]:
    """(token, log-probability) of one token, then of the `count` likeliest."""
    logprobs_V = logits_V.float().log_softmax(-1)
    likely_K, tokens_K = logprobs_V.topk(min(count, len(logprobs_V)))
    ids, values = [token, *tokens_K.tolist()], [float(logprobs_V[token]), *likely_K.tolist()]
    return tuple(zip(ids, values, strict=True))


@dataclass(frozen=True)
class Token:
    """One decoded token; `finish` says why it is the last.

    `logprobs` are natural logarithms of the probability of this token and of the likeliest ones, by the
    model's own scores: before penalties, temperature, top-k, top-p and what is allowed.
    """

    id: int
    finish: Finish | None = None
    logprobs: tuple[tuple[int, float], ...] = ()  # (token, logprob), this one first


class Finder:
    """Finds the first of some strings in text that comes in pieces."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted, self._held = tuple(wanted), ""

    def add(self, text: str) -> tuple[str, str | None]:
        """Text that is surely before any wanted string, and the string found; the rest is kept for later."""
        self._held += text
        hits = [(at, -len(w), w) for w in self._wanted if (at := self._held.find(w)) >= 0]
        if hits:
            at, _, found = min(hits)
            before, self._held = self._held[:at], self._held[at + len(found) :]
            return before, found
        longest = len(self._held) + 1
        begun = (
            n for w in self._wanted for n in range(1, min(len(w), longest)) if self._held.endswith(w[:n])
        )
        cut = len(self._held) - max(begun, default=0)
        before, self._held = self._held[:cut], self._held[cut:]
        return before, None

    def close(self) -> str:
        """What was held back, once no more text comes."""
        rest, self._held = self._held, ""
        return rest
