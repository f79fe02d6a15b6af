"""A language model in this process (transformers on the CPU), scored with shared prefixes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from polyarm_core.errors import InvalidValue, MissingExtra
from polyarm_core.llm.interface import (
    MAX_GENERATED_TOKENS,
    Generation,
    ModelError,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    Prompt,
    Scores,
    check_candidates,
    is_lark,
)
from polyarm_core.llm.packed import pack_linears
from polyarm_core.llm.token_tree import token_tree
from polyarm_core.llm.weights import prepare

if TYPE_CHECKING:
    import torch

KEPT_PREFIXES = 32  # static prompt parts whose keys and values stay in memory; about 23 KB a token with the default
PACKED_TOKENS = 2048  # longest sequence that one packed pass computes; attention is quadratic in it

Prefix = list[tuple["torch.Tensor", "torch.Tensor"]]  # keys and values of each layer, (1, heads, tokens, head size)


class TransformersModel:
    """A causal language model of the ``transformers`` library.

    Everything that the candidates share is computed once: the static part of the prompt is kept across calls, and the
    rest of the prompt and the candidates, as a prefix tree, are one forward pass (:mod:`polyarm_core.llm.token_tree`).
    Decisions are computed one after the other: on one or two cores packing several into one pass gains nothing, and
    so a decision's scores never depend on who else asked.

    A computation cannot be interrupted; where an answer by a deadline matters, put the model into a server of its own
    (:mod:`polyarm_core.llm.server`).

    Args:
        name: packaged name, folder or hub id, see :func:`polyarm_core.llm.weights.prepare`.
        threads: CPU threads of the whole process. More than one next to other busy processes is slower, by up to
            twenty times.
        dtype: ``"bfloat16"`` (half the time, scores move by up to 0.07) or ``"float32"``.
        kept_prefixes: how many static prompt parts are kept, the most recently used.
        packed: halve the time of a written token, see :mod:`polyarm_core.llm.packed`; bfloat16 only.

    Raises:
        MissingExtra: torch or transformers is not installed.
        ModelError: the weights cannot be found or loaded.
    """

    def __init__(
        self,
        name: str,
        threads: int = 1,
        dtype: str = "bfloat16",
        kept_prefixes: int = KEPT_PREFIXES,
        packed: bool = False,
    ) -> None:
        if dtype not in ("bfloat16", "float32"):
            raise InvalidValue("dtype", dtype, "bfloat16 or float32")
        if threads < 1:
            raise InvalidValue("threads", threads, "1 or more")
        source = prepare(name)
        if "torch" not in sys.modules:  # read once, at import: waiting threads sleep instead of spinning
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            os.environ.setdefault("GOMP_SPINCOUNT", "0")
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
            from transformers.utils import logging
        except ImportError as error:
            raise MissingExtra(error.name or "transformers", "models") from error
        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        try:
            local = os.path.isdir(source)
            self._tokenizer: Any = AutoTokenizer.from_pretrained(source, local_files_only=local)
            self._model: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=getattr(torch, dtype), local_files_only=local, attn_implementation="sdpa"
            )
            self._model.eval()
            if packed:
                pack_linears(self._model)
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"model {name!r} cannot be loaded from {source}: {error}") from error
        finally:
            logging.enable_progress_bar()
        self.name = name
        self.context_length = int(getattr(self._model.config, "max_position_embeddings", 0) or sys.maxsize)
        self._kept = kept_prefixes
        self._prefixes: OrderedDict[tuple[int, ...], Prefix] = OrderedDict()
        self._lock = threading.Lock()  # one computation at a time, and the owner of the prefixes
        self._grammar_tokenizer: Any = None
        self._shares = _attends_to_everything(self._model.config)
        self.score(Prompt("Warm", "up:"), ["now"])  # the first pass pays for lazily built kernels
        self.forget_prefixes()

    # -- the interface ------------------------------------------------------------------------------------------------

    def score(self, prompt: Prompt, candidates: Sequence[str]) -> Scores:
        """Mean token log-probability of each candidate (eq. 6), prefixes shared.

        Raises:
            ModelRefused: a blank prompt or candidate, or more tokens than the model's context.
        """
        return self._score(prompt, candidates, self._shared_logprobs if self._shares else self._separate_logprobs)

    def score_unshared(self, prompt: Prompt, candidates: Sequence[str]) -> Scores:
        """As :meth:`score`, but one full pass for each candidate: what sharing saves, and what it must agree with."""
        return self._score(prompt, candidates, self._separate_logprobs)

    def score_batch(self, items: Sequence[tuple[Prompt, Sequence[str]]]) -> list[Scores]:
        """Scores of several decisions, one after the other. Raises as :meth:`score`."""
        return [self.score(prompt, candidates) for prompt, candidates in items]

    def generate(
        self,
        prompt: Prompt,
        grammar: str | None = None,
        max_tokens: int = MAX_GENERATED_TOKENS,
        deadline: float | None = None,
    ) -> Generation:
        """Greedy decoding, constrained by a grammar where one is given.

        Args:
            prompt, grammar, max_tokens: as in :class:`~polyarm_core.llm.interface.LanguageModel`.
            deadline: on the clock of ``time.monotonic``; checked before every token.

        Raises:
            ModelRefused: a malformed grammar, a blank prompt, or more tokens than the model's context.
            ModelTimeout: the deadline passed.
            MissingExtra: a grammar, but llguidance is not installed.
        """
        head, tail = self.prompt_tokens(prompt)
        return self.generate_after(head + tail, grammar, max_tokens, deadline, kept=len(head))

    # -- tokens in, numbers out: what the server's OpenAI-compatible end points are made of ----------------------------

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens).input_ids
        return ids

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """Text that each token adds, special tokens included; joined they are the whole text."""
        texts = []
        before = ""
        for end in range(1, len(tokens) + 1):
            now = str(self._tokenizer.decode(tokens[:end], clean_up_tokenization_spaces=False))
            texts.append(now[len(before) :])
            before = now
        return texts

    def render_chat(self, messages: Sequence[dict[str, str]]) -> str:
        """Text that the model reads for a conversation, up to where its answer begins.

        Raises:
            ModelRefused: the model has no chat template, or it does not take these roles.
        """
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise ModelRefused(f"{self.name} has no chat template")
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=False
                )
            )
        except (TemplateError, KeyError, TypeError) as error:
            raise ModelRefused(f"the chat template of {self.name} does not take these messages: {error}") from error

    def prompt_tokens(self, prompt: Prompt) -> tuple[list[int], list[int]]:
        """Token ids of the part of the prompt that stays from slot to slot, and of the rest (never empty).

        The two parts are tokenized separately, so the static part has the same tokens whatever follows.

        Raises:
            ModelRefused: the prompt is blank.
        """
        if not (prompt.static + prompt.dynamic).strip():
            raise ModelRefused("the prompt is blank")
        special = False
        if self._tokenizer.chat_template:
            system = [{"role": "system", "content": prompt.static}] if prompt.static else []
            try:
                text = self.render_chat([*system, {"role": "user", "content": prompt.dynamic}])
            except ModelRefused:  # some templates know no system message
                text = self.render_chat([{"role": "user", "content": prompt.static + prompt.dynamic}])
            start = text.find(prompt.static)
            if start < 0:  # templates may trim or rewrite; then there is less to keep
                start = text.find(prompt.static.strip())
                split = start + len(prompt.static.strip()) if start >= 0 else 0
            else:
                split = start + len(prompt.static)
        else:
            text, split, special = prompt.static + prompt.dynamic, len(prompt.static), True
        head = self.tokenize(text[:split], add_special_tokens=special) if split else []
        tail = self.tokenize(text[split:], add_special_tokens=special and not head)
        return (head, tail) if tail else (head[:-1], head[-1:])

    def answer_tokens(self, prompt: Prompt, text: str) -> list[int]:
        """Token ids of an answer: directly after a chat template, after one space where the prompt is plain text."""
        plain = not self._tokenizer.chat_template
        spaced = plain and not (prompt.static + prompt.dynamic)[-1:].isspace()
        return self.tokenize((" " if spaced else "") + text)

    def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token but the first, given those before it; sequences share what they have in common.

        Raises:
            ModelRefused: an empty sequence, a token that does not exist, or more tokens than the model's context.
        """
        for sequence in sequences:
            self._check_tokens(sequence)
        with self._lock:
            return (self._shared_logprobs if self._shares else self._separate_logprobs)([], sequences, 1)

    def generate_after(
        self,
        tokens: Sequence[int],
        grammar: str | None = None,
        max_tokens: int = MAX_GENERATED_TOKENS,
        deadline: float | None = None,
        kept: int = 0,
        perturbed: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Generation:
        """Greedy decoding after token ids, of which the first ``kept`` stay in the cache. As :meth:`generate`.

        ``perturbed`` changes the logits of each token, e.g. to draw instead.
        """
        import torch
        from transformers import DynamicCache

        started = time.perf_counter()
        writer = self.writer(tokens, grammar, max_tokens, perturbed)
        with self._lock, torch.inference_mode():
            if self._shares and kept:
                cache, pending = self._cache(self._prefix(tokens[:kept])), list(tokens[kept:])
            else:
                cache, pending = DynamicCache(config=self._model.config), list(tokens)
            while not writer.ended:
                if deadline is not None and time.monotonic() > deadline:
                    raise ModelTimeout(f"{self.name} wrote {len(writer.written)} tokens before the deadline")
                output = self._model(torch.tensor([pending]), cache=cache, use_cache=True, logits_to_keep=1)
                writer.take(output.logits[0, -1].float())
                pending = writer.pending
        return self.generation(writer, len(tokens), started)

    def writer(
        self,
        tokens: Sequence[int],
        grammar: str | None,
        max_tokens: int,
        perturbed: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Writer:
        """What follows these tokens, not begun yet. Arguments and errors as :meth:`generate_after`."""
        self._check_tokens(tokens, extra=max_tokens)
        constraint = _Constraint(grammar, self) if grammar is not None else None
        return Writer(constraint, self._end_tokens(), max_tokens, perturbed)

    def generation(self, writer: Writer, prompt_tokens: int, started: float) -> Generation:
        """What was written since ``started``, s on the clock of ``time.perf_counter``."""
        return Generation(
            text=self.detokenize(writer.written),
            prompt_tokens=prompt_tokens,
            tokens=len(writer.written),
            seconds=time.perf_counter() - started,
            finished=writer.finished,
        )

    # -- parts of it, for whoever writes several texts at once --------------------------------------------------------

    @property
    def shares(self) -> bool:
        """Whether texts can share passes: attention takes a general mask."""
        return self._shares

    def computing(self) -> threading.Lock:
        """One computation at a time: hold it around :meth:`read` and :meth:`read_on`."""
        return self._lock

    def read(self, head: Sequence[int], tail: Sequence[int]) -> tuple[torch.Tensor, Any]:
        """Logits after a prompt, shape (vocabulary,), float32, and a cache of its keys and values; ``head`` is kept."""
        import torch

        cache = self._cache(self._prefix(head))
        output = self._model(torch.tensor([tail]), cache=cache, use_cache=True, logits_to_keep=1)
        return output.logits[0, -1].float(), cache

    def read_on(self, tokens: torch.Tensor, cache: Any, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits after the last token of each text, shape (texts, vocabulary), float32; the cache grows.

        Args:
            tokens, positions: shape (texts, tokens).
            cache: of the texts so far.
            mask: what each token attends to, bool, shape (texts, 1, tokens, cached + tokens).
        """
        output = self._model(
            tokens, cache=cache, use_cache=True, attention_mask=mask, position_ids=positions, logits_to_keep=1
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    def forget_prefixes(self) -> None:
        """Drop the kept keys and values, e.g. to measure what they save."""
        with self._lock:
            self._prefixes.clear()

    # -- computation (with the lock held) -----------------------------------------------------------------------------

    def _score(
        self,
        prompt: Prompt,
        candidates: Sequence[str],
        logprobs: Callable[[Sequence[int], Sequence[Sequence[int]], int], list[list[float]]],
    ) -> Scores:
        started = time.perf_counter()
        texts = check_candidates(candidates)
        head, tail = self.prompt_tokens(prompt)
        answers = [self.answer_tokens(prompt, text) for text in texts]
        for answer in answers:
            self._check_tokens(head + tail + answer)
        with self._lock:
            started_computing = time.perf_counter()
            rows = logprobs(head, [tail + answer for answer in answers], len(tail))
        waited = started_computing - started
        return Scores(
            mean_logprobs=tuple(sum(row) / len(row) for row in rows),
            prompt_tokens=len(head) + len(tail),
            candidate_tokens=sum(map(len, answers)),
            seconds=time.perf_counter() - started - waited,
        )

    def _shared_logprobs(
        self, head: Sequence[int], sequences: Sequence[Sequence[int]], first: int
    ) -> list[list[float]]:
        """Log-probabilities of the tokens from index ``first`` >= 1 on, in one pass over the sequences' prefix tree."""
        import torch

        tree = token_tree([sequence[:-1] for sequence in sequences])  # nothing follows the last tokens
        if len(tree.tokens) > PACKED_TOKENS and len(sequences) > 1:
            half = len(sequences) // 2
            return self._shared_logprobs(head, sequences[:half], first) + self._shared_logprobs(
                head, sequences[half:], first
            )
        followed = [path[first - 1 :] for path in tree.paths]  # the nodes that a scored token follows
        asked = sorted({node for path in followed for node in path})
        if not asked:
            return [[] for _ in sequences]
        row_of = {node: row for row, node in enumerate(asked)}
        with torch.inference_mode():
            cache = self._cache(self._prefix(head))
            seen = torch.ones(len(tree.tokens), len(head), dtype=torch.bool)
            mask = torch.cat([seen, torch.from_numpy(tree.attention())], dim=1)
            output = self._model(
                torch.tensor([tree.tokens]),
                cache=cache,
                use_cache=True,
                attention_mask=mask[None, None],
                position_ids=torch.tensor([[len(head) + depth for depth in tree.depths]]),
                logits_to_keep=torch.tensor(asked),  # the output layer is a fifth of the work with the default model
            )
            logits = output.logits[0].float()
            rows = torch.tensor([row_of[node] for path in followed for node in path], dtype=torch.long)
            tokens = torch.tensor([token for sequence in sequences for token in sequence[first:]], dtype=torch.long)
            flat = (logits[rows, tokens] - logits.logsumexp(-1)[rows]).tolist()
        values = iter(flat)
        return [[next(values) for _ in path] for path in followed]

    def _separate_logprobs(
        self, head: Sequence[int], sequences: Sequence[Sequence[int]], first: int
    ) -> list[list[float]]:
        """The same by one full pass for each sequence; for models whose attention has no general mask."""
        import torch

        result: list[list[float]] = []
        with torch.inference_mode():
            for sequence in sequences:
                asked = list(sequence[first:])
                if not asked:
                    result.append([])
                    continue
                logits = self._model(torch.tensor([[*head, *sequence]]), logits_to_keep=len(asked) + 1).logits[0, :-1]
                scores = logits.float().log_softmax(-1)
                result.append(scores[torch.arange(len(asked)), torch.tensor(asked)].tolist())
        return result

    def _prefix(self, head: Sequence[int]) -> Prefix:
        """Keys and values of the prompt's static part, computed or kept."""
        import torch
        from transformers import DynamicCache

        if not head:
            return []
        key = tuple(head)
        prefix = self._prefixes.get(key)
        if prefix is None:
            cache: Any = DynamicCache()
            self._model(torch.tensor([key]), cache=cache, use_cache=True, logits_to_keep=1)
            prefix = [(layer.keys, layer.values) for layer in cache.layers]
            self._prefixes[key] = prefix
            while len(self._prefixes) > self._kept:
                self._prefixes.popitem(last=False)
        if key in self._prefixes:
            self._prefixes.move_to_end(key)
        return prefix

    @staticmethod
    def _cache(prefix: Prefix) -> Any:
        """A cache that begins with the prefix; growing it copies, so the prefix itself is never changed."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(prefix):
            cache.update(keys, values, layer)
        return cache

    def _check_tokens(self, tokens: Sequence[int], extra: int = 0) -> None:
        size = int(self._model.config.vocab_size)
        if not tokens:
            raise ModelRefused("there are no tokens")
        if not all(isinstance(token, int) and 0 <= token < size for token in tokens):
            raise ModelRefused(f"a token id lies outside 0 to {size - 1}")
        if len(tokens) + extra > self.context_length:
            raise ModelRefused(f"{len(tokens) + extra} tokens; {self.name} reads at most {self.context_length}")

    def _end_tokens(self) -> frozenset[int]:
        configured = self._model.generation_config.eos_token_id
        ends = configured if isinstance(configured, list) else [configured]
        return frozenset(int(end) for end in [*ends, self._tokenizer.eos_token_id] if end is not None)


class Writer:
    """A text that grows by what the model finds most probable and the grammar allows.

    Attributes:
        written: token ids so far.
        pending: those of them that the model has not read yet.
        ended: there is nothing more to write.
        finished: the text came to its end by itself.
    """

    def __init__(
        self,
        constraint: _Constraint | None,
        ends: frozenset[int],
        max_tokens: int,
        perturbed: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> None:
        self._constraint, self._ends, self._max_tokens, self._perturbed = constraint, ends, max_tokens, perturbed
        self.written: list[int] = []
        self.pending: list[int] = []
        self.ended = max_tokens < 1
        self.finished = False

    def take(self, logits: torch.Tensor) -> None:
        """Choose the next token by its logits, shape (vocabulary,), float32."""
        constraint = self._constraint
        if self._perturbed is not None:
            logits = self._perturbed(logits)
        token = constraint.pick(logits) if constraint else int(logits.argmax())
        if token is None or token in self._ends:
            self.ended = self.finished = True
            return
        self.pending = [token]
        if constraint is not None:  # what can only follow costs no pass of its own
            self.pending += constraint.forced()
        self.written += self.pending
        if len(self.written) >= self._max_tokens:
            self.ended = True
            self.finished = constraint is not None and constraint.complete and len(self.written) <= self._max_tokens
            del self.written[self._max_tokens :]


class _Constraint:
    """Keeps generated text within a grammar (llguidance, numpy path)."""

    def __init__(self, grammar: str, model: TransformersModel) -> None:
        try:
            import llguidance
            import llguidance.hf
            import llguidance.numpy
        except ImportError as error:
            raise MissingExtra("llguidance", "models") from error
        size = int(model._model.config.vocab_size)
        if model._grammar_tokenizer is None:  # a second once
            model._grammar_tokenizer = llguidance.hf.from_tokenizer(model._tokenizer, n_vocab=size)
        build = llguidance.LLMatcher.grammar_from_lark if is_lark(grammar) else llguidance.LLMatcher.grammar_from_regex
        self._numpy = llguidance.numpy
        self._matcher = llguidance.LLMatcher(model._grammar_tokenizer, build(grammar), log_level=0)
        if self._matcher.is_error():
            raise ModelRefused(f"grammar {grammar!r} is not well formed: {self._matcher.get_error()}")
        self._mask = self._numpy.allocate_token_bitmask(1, size)

    @property
    def complete(self) -> bool:
        """Whether the text so far is a whole sentence of the grammar."""
        return bool(self._matcher.is_accepting())

    def pick(self, logits: torch.Tensor) -> int | None:
        """The most probable token that the grammar allows (an end token where it may end); None where it must end."""
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return None
        self._numpy.fill_next_token_bitmask(self._matcher, self._mask)
        scores = logits.numpy()[None].copy()
        self._numpy.apply_token_bitmask_inplace(scores, self._mask)
        token = int(scores[0].argmax())
        if self._matcher.is_error() or not self._matcher.consume_token(token):
            raise ModelError(f"the grammar's matcher failed: {self._matcher.get_error()}")
        return token

    def forced(self) -> list[int]:
        """Tokens that must follow, whatever the model thinks; they are taken as written."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if tokens and not self._matcher.consume_tokens(tokens):
            raise ModelError(f"the grammar's matcher failed: {self._matcher.get_error()}")
        return tokens


def _attends_to_everything(config: Any) -> bool:
    """Whether every layer is full attention, so that one mask describes all of them.

    Sliding windows and recurrent layers do not take the tree's mask; such models get one pass for each candidate.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return all(kind == "full_attention" for kind in kinds)
    window = getattr(config, "sliding_window", None)
    return window is None or not getattr(config, "use_sliding_window", True)
