"""Texts of several threads, written by one model at the same time.

Reading the weights is most of the work of a pass, so a pass for eight texts takes little longer than one for a single
text. A text joins when it is asked for and leaves when it ends; the others do not wait for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyarm_core.errors import InvalidValue
from polyarm_core.llm.interface import MAX_GENERATED_TOKENS, Generation, ModelError, ModelTimeout, Prompt, Scores

if TYPE_CHECKING:
    import torch

    from polyarm_core.llm.transformers_backend import TransformersModel, Writer

WIDTH = 2  # tokens of each of several texts that a pass reads at most: the shorter ones are filled up to the longest
PATIENCE = 900.0  # s that a text may take, with all that is written beside it


class _Row:
    """A text that somebody waits for."""

    def __init__(self, writer: Writer, head: Sequence[int], tail: Sequence[int]) -> None:
        self.writer = writer
        self.head, self.tail = head, tail
        self.seen = len(head) + len(tail)  # tokens that the model has read
        self.unread: list[int] = []  # and what it has written since
        self.error: ModelError | None = None
        self.done = threading.Event()

    def take(self, logits: torch.Tensor) -> bool:
        """Write on; whether there is more to write."""
        try:
            self.writer.take(logits)
        except ModelError as error:
            self.error = error
        if self.error is None and not self.writer.ended:
            self.unread = self.writer.pending
            return True
        self.done.set()
        return False


class BatchedModel:
    """A model that writes for up to ``most`` threads at once. Implements ``LanguageModel`` and ``Sampler``.

    bfloat16 rounds differently in passes of different size: where two tokens are as probable as each other to that
    precision, a text may depend on what is written beside it. With a single caller it does not.

    Args:
        model: writes. Models whose attention has no general mask write one text after the other.
        most: texts at once.

    Raises:
        InvalidValue: most below 1.
    """

    def __init__(self, model: TransformersModel, most: int = 16) -> None:
        if most < 1:
            raise InvalidValue("most", most, "at least 1")
        self.model = model
        self.name = model.name
        self.most = most
        self._waiting: deque[_Row] = deque()
        self._lock = threading.Lock()
        self._working = False

    def score(self, prompt: Prompt, candidates: Sequence[str]) -> Scores:
        """As the model's."""
        return self.model.score(prompt, candidates)

    def score_batch(self, items: Sequence[tuple[Prompt, Sequence[str]]]) -> list[Scores]:
        """As the model's."""
        return self.model.score_batch(items)

    def generate(
        self, prompt: Prompt, grammar: str | None = None, max_tokens: int = MAX_GENERATED_TOKENS
    ) -> Generation:
        """As the model's, without a deadline. Raises as that, and ``ModelTimeout`` after ``PATIENCE``."""
        return self._write(prompt, grammar, max_tokens, None)

    def sample(
        self,
        prompt: Prompt,
        temperature: float,
        seed: int,
        grammar: str | None = None,
        max_tokens: int = MAX_GENERATED_TOKENS,
    ) -> Generation:
        """A text, every token drawn with the probabilities of what the grammar allows.

        Args:
            prompt, grammar, max_tokens: as in :meth:`generate`.
            temperature: above 0; 1 draws with the model's own probabilities, less prefers the probable.
            seed: the same one draws the same text.

        Raises:
            InvalidValue: temperature not above 0.
            ModelError: as :meth:`generate`.
        """
        return self._write(prompt, grammar, max_tokens, drawn(temperature, seed))

    def _write(
        self,
        prompt: Prompt,
        grammar: str | None,
        max_tokens: int,
        perturbed: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> Generation:
        started = time.perf_counter()
        head, tail = self.model.prompt_tokens(prompt)
        if not self.model.shares:
            return self.model.generate_after(head + tail, grammar, max_tokens, kept=len(head), perturbed=perturbed)
        row = _Row(self.model.writer(head + tail, grammar, max_tokens, perturbed), head, tail)
        if not row.writer.ended:
            with self._lock:
                self._waiting.append(row)
                if not self._working:
                    self._working = True
                    threading.Thread(target=self._work, name="batched model", daemon=True).start()
            if not row.done.wait(PATIENCE):
                raise ModelTimeout(f"{self.name} did not finish a text in {PATIENCE:.0f} s")
            if row.error is not None:
                raise row.error
        return self.model.generation(row.writer, len(head) + len(tail), started)

    def _work(self) -> None:
        """Write until nobody waits; the next one who does starts another thread."""
        batch = _Batch(self.model)
        while True:
            with self._lock:
                if not batch.rows and not self._waiting:
                    self._working = False
                    return
                new = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.most - len(batch.rows)))]
            try:
                batch.step(new)
            except Exception as error:  # whoever waits must hear of it, whatever it is
                for row in {*batch.rows, *new}:
                    row.error = row.error or ModelError(f"{self.name}: {error}")
                    row.done.set()
                batch = _Batch(self.model)


class _Batch:
    """Texts that are being written: keys and values of each layer, and which of them count, shape (texts, tokens)."""

    def __init__(self, model: TransformersModel) -> None:
        import torch

        self.model = model
        self.rows: list[_Row] = []
        self.cache: Any = None
        self.valid = torch.zeros(0, 0, dtype=torch.bool)

    def step(self, new: Sequence[_Row]) -> None:
        """One pass for all texts, after one for each new one that reads its prompt."""
        import torch

        with self.model.computing(), torch.inference_mode():
            for row in new:
                self._join(row)
            if self.rows:
                self._advance()

    def _join(self, row: _Row) -> None:
        import torch
        from torch.nn.functional import pad

        logits, cache = self.model.read(row.head, row.tail)
        if not row.take(logits):
            return
        size = len(row.head) + len(row.tail)
        old = self.valid.shape[1]
        length = max(old, size)
        if self.rows:
            for mine, other in zip(self.cache.layers, cache.layers, strict=True):
                for name in ("keys", "values"):
                    parts = [(getattr(mine, name), old), (getattr(other, name), size)]
                    joined = [pad(tensor, (0, 0, length - count, 0)) for tensor, count in parts]
                    setattr(mine, name, torch.cat(joined))
        else:
            self.cache = cache
        ones = torch.ones(1, size, dtype=torch.bool)
        self.valid = torch.cat([pad(self.valid, (length - old, 0)), pad(ones, (length - size, 0))])
        self.rows.append(row)

    def _advance(self) -> None:
        import torch

        width = max(len(row.unread) for row in self.rows)
        if len(self.rows) > 1:
            width = min(width, WIDTH)
        shape, old = (len(self.rows), width), self.valid.shape[1]
        tokens = torch.zeros(shape, dtype=torch.long)
        positions = torch.zeros(shape, dtype=torch.long)
        fresh = torch.zeros(shape, dtype=torch.bool)
        for i, row in enumerate(self.rows):  # shorter ones are filled up at their left
            part, row.unread = row.unread[:width], row.unread[width:]
            count = len(part)
            tokens[i, width - count :] = torch.tensor(part)
            positions[i, width - count :] = torch.arange(row.seen, row.seen + count)
            fresh[i, width - count :] = True
            row.seen += count
        self.valid = torch.cat([self.valid, fresh], dim=1)
        mask = self.valid[:, None, :].repeat(1, width, 1)
        mask[:, :, old:] &= torch.ones(width, width, dtype=torch.bool).tril()
        mask[:, torch.arange(width), old + torch.arange(width)] = True  # a row without anything to see gives no number
        logits = self.model.read_on(tokens, self.cache, mask[:, None], positions)
        keep = [i for i, row in enumerate(self.rows) if row.unread or row.take(logits[i])]
        if len(keep) == len(self.rows):
            return
        self.rows = [self.rows[i] for i in keep]
        self.valid = self.valid[keep]
        if not self.rows:
            self.valid = self.valid[:, :0]
            return
        first = int(self.valid.any(dim=0).int().argmax())  # what is left of it belonged to those who are gone
        self.valid = self.valid[:, first:]
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[keep][:, :, first:], layer.values[keep][:, :, first:]


def drawn(temperature: float, seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Changes logits so that the largest of them is a draw from their softmax, also among those that a grammar allows.

    Raises:
        InvalidValue: temperature not above 0.
    """
    if not temperature > 0.0:
        raise InvalidValue("temperature", temperature, "above 0")
    rng = np.random.default_rng(seed)

    def perturbed(logits: torch.Tensor) -> torch.Tensor:
        return logits / temperature + logits.new_tensor(rng.gumbel(size=logits.shape[0]))

    return perturbed
