"""A language model behind any OpenAI-compatible server: vLLM, SGLang, llama.cpp's server, Polyarm's own."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from polyarm_core.errors import InvalidValue
from polyarm_core.llm.http_json import Endpoint, error_text, exchange
from polyarm_core.llm.interface import (
    MAX_GENERATED_TOKENS,
    Generation,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    Prompt,
    Scores,
    check_candidates,
    is_lark,
)

ATTEMPTS = 3
FIRST_PAUSE = 0.1  # seconds before the second attempt; doubled for the third
KEPT_TEXTS = 4096  # tokenized texts that are remembered

Scoring = Literal["auto", "prompt_logprobs", "echo"]


class OpenAIModel:
    """Client of ``/v1/completions`` that scores candidates by the log-probabilities of prompt tokens.

    Two ways to get these exist. ``prompt_logprobs`` is vLLM's own parameter; ``echo`` with ``logprobs`` is the old form
    of the OpenAI interface. ``auto`` tries the first and falls back to the second. Token ids come from ``/tokenize``,
    prompt (with the server's chat template) and candidates separately; a server without that end point gets plain
    text, and the candidate's tokens are found by their offsets. All candidates travel in one request.
    (The first request to a vLLM server that has just started can take half a minute: ask once before time matters.)

    Args:
        url: base address without ``/v1``, e.g. ``http://127.0.0.1:8000``.
        name: the model's name on that server; empty = the first one it lists.
        timeout: longest that one call may take, retries included, seconds.
        scoring: see above.
        api_key: sent as a bearer token; default ``$OPENAI_API_KEY``.

    Raises:
        InvalidValue: a malformed URL, timeout or scoring.
    """

    def __init__(
        self, url: str, name: str = "", *, timeout: float = 15.0, scoring: Scoring = "auto", api_key: str | None = None
    ) -> None:
        if not timeout > 0:
            raise InvalidValue("timeout", timeout, "seconds > 0")
        if scoring not in ("auto", "prompt_logprobs", "echo"):
            raise InvalidValue("scoring", scoring, "auto, prompt_logprobs or echo")
        base = url.rstrip("/")
        self._endpoint = Endpoint.parse(base[: -len("/v1")] if base.endswith("/v1") else base)
        self._name = name
        self.timeout = timeout
        self._scoring: Scoring = scoring
        self._tokenizes: bool | None = None  # unknown until the first call
        self._chats: bool | None = None
        key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._answers: dict[tuple[str, bool], list[int]] = {}

    def score(self, prompt: Prompt, candidates: Sequence[str]) -> Scores:
        """Mean token log-probability of each candidate (eq. 6).

        Raises:
            ModelUnavailable: no server there, or it failed, after the retries.
            ModelTimeout: no answer within the timeout.
            ModelRefused: the server does not accept the request or gives no log-probabilities of prompt tokens.
        """
        started = time.perf_counter()
        texts = check_candidates(candidates)
        deadline = time.monotonic() + self.timeout
        head = self._prompt(prompt, deadline)
        if isinstance(head, str):
            rows, length = self._score_text(head, texts, deadline)
        else:
            tokens, spaced = head
            answers = [self._answer_tokens(text, not self._chats and not spaced, deadline) for text in texts]
            rows, length = self._score_tokens(tokens, answers, deadline), len(tokens)
        return Scores(
            mean_logprobs=tuple(sum(row) / len(row) for row in rows),
            prompt_tokens=length,
            candidate_tokens=sum(map(len, rows)),
            seconds=time.perf_counter() - started,
        )

    def score_batch(self, items: Sequence[tuple[Prompt, Sequence[str]]]) -> list[Scores]:
        """All decisions at once; such servers batch what arrives together. Raises as :meth:`score`."""
        if not items:
            return []
        with ThreadPoolExecutor(max_workers=len(items)) as pool:
            return list(pool.map(lambda item: self.score(*item), items))

    def generate(
        self, prompt: Prompt, grammar: str | None = None, max_tokens: int = MAX_GENERATED_TOKENS
    ) -> Generation:
        """Greedy text; a grammar becomes ``structured_outputs`` (vLLM >= 0.11). Raises as :meth:`score`."""
        started = time.perf_counter()
        deadline = time.monotonic() + self.timeout
        head = self._prompt(prompt, deadline)
        body: dict[str, Any] = {
            "prompt": head if isinstance(head, str) else head[0],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        if grammar is not None:
            body["structured_outputs"] = {"grammar" if is_lark(grammar) else "regex": grammar}
        answer = self._completions(body, deadline)
        try:
            choice, usage = answer["choices"][0], answer["usage"]
            return Generation(
                text=str(choice["text"]),
                prompt_tokens=int(usage["prompt_tokens"]),
                tokens=int(usage["completion_tokens"]),
                seconds=time.perf_counter() - started,
                finished=choice["finish_reason"] == "stop",
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ModelUnavailable(f"{self._endpoint}: not a completion: {answer!r:.200}") from error

    # -- prompt and candidates as tokens ------------------------------------------------------------------------------

    def _prompt(self, prompt: Prompt, deadline: float) -> str | tuple[list[int], bool]:
        """Token ids of the prompt and whether it ends in white space; its text if the server does not tokenize."""
        text = prompt.static + prompt.dynamic
        if not text.strip():
            raise ModelRefused("the prompt is blank")
        spaced = text[-1].isspace()
        if self._tokenizes is False:
            return text
        if self._chats is not False:
            system = [{"role": "system", "content": prompt.static}] if prompt.static else []
            for messages in (
                [*system, {"role": "user", "content": prompt.dynamic}],
                [{"role": "user", "content": text}],  # some templates know no system message
            ):
                status, answer = self._post(
                    "/tokenize",
                    {"messages": messages, "add_generation_prompt": True, "add_special_tokens": False},
                    deadline,
                )
                if status == 200:
                    self._tokenizes = self._chats = True
                    return _tokens(answer), spaced
                if status in (404, 405, 501):
                    self._tokenizes = False
                    return text
            self._chats = False  # no chat template: a base model
        status, answer = self._post("/tokenize", {"prompt": text, "add_special_tokens": True}, deadline)
        if status != 200:
            raise ModelRefused(f"{self._endpoint}/tokenize: {status}: {error_text(answer)}")
        self._tokenizes = True
        return _tokens(answer), spaced

    def _answer_tokens(self, text: str, space: bool, deadline: float) -> list[int]:
        known = self._answers.get((text, space))
        if known is None:
            body = {"prompt": (" " if space else "") + text, "add_special_tokens": False}
            status, answer = self._post("/tokenize", body, deadline)
            if status != 200:
                raise ModelRefused(f"{self._endpoint}/tokenize: {status}: {error_text(answer)}")
            known = _tokens(answer)
            if len(self._answers) >= KEPT_TEXTS:
                self._answers.clear()
            self._answers[text, space] = known
        return known

    # -- log-probabilities --------------------------------------------------------------------------------------------

    def _score_tokens(self, prompt: list[int], answers: list[list[int]], deadline: float) -> list[list[float]]:
        body = {"prompt": [prompt + answer for answer in answers], "max_tokens": 1, "temperature": 0}
        if self._scoring != "echo":
            choices = self._choices({**body, "prompt_logprobs": 0}, len(answers), deadline, self._scoring == "auto")
            if choices and all(choice.get("prompt_logprobs") for choice in choices):
                return [
                    _read_prompt_logprobs(choice["prompt_logprobs"], len(prompt), answer)
                    for choice, answer in zip(choices, answers, strict=True)
                ]
            if self._scoring == "prompt_logprobs":
                raise ModelRefused(f"{self._endpoint} gives no prompt_logprobs")
        choices = self._choices({**body, "echo": True, "logprobs": 0}, len(answers), deadline)
        self._scoring = "echo"  # it works here; do not try the other one again
        return [
            _finite(_echoed(choice, self._endpoint)["token_logprobs"][len(prompt) : len(prompt) + len(answer)])
            for choice, answer in zip(choices, answers, strict=True)
        ]

    def _score_text(self, prompt: str, texts: list[str], deadline: float) -> tuple[list[list[float]], int]:
        space = "" if prompt[-1].isspace() else " "
        whole = [prompt + space + text for text in texts]
        body = {"prompt": whole, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 0}
        rows = []
        length = 0
        for choice, text in zip(self._choices(body, len(texts), deadline), whole, strict=True):
            echoed = _echoed(choice, self._endpoint)
            inside = [
                value
                for value, offset in zip(echoed["token_logprobs"], echoed["text_offset"], strict=True)
                if len(prompt) <= offset < len(text)
            ]
            length = sum(offset < len(prompt) for offset in echoed["text_offset"])
            rows.append(_finite(inside))
        return rows, length

    def _choices(
        self, body: dict[str, Any], count: int, deadline: float, refusable: bool = False
    ) -> list[dict[str, Any]]:
        try:
            answer = self._completions(body, deadline)
        except ModelRefused:
            if refusable:
                return []
            raise
        try:
            choices: list[dict[str, Any]] = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelUnavailable(f"{self._endpoint}: not a completion: {answer!r:.200}") from error
        if len(choices) != count:
            raise ModelUnavailable(f"{self._endpoint}: {len(choices)} choices for {count} prompts")
        return choices

    # -- requests -----------------------------------------------------------------------------------------------------

    def _completions(self, body: dict[str, Any], deadline: float) -> Any:
        status, answer = self._post("/v1/completions", body, deadline)
        if status != 200:
            raise ModelRefused(f"{self._endpoint}/v1/completions: {status}: {error_text(answer)}")
        return answer

    def _post(self, path: str, body: dict[str, Any], deadline: float) -> tuple[int, Any]:
        return self._attempt(path, {"model": self._model(deadline), **body}, deadline)

    def _model(self, deadline: float) -> str:
        if not self._name:
            status, answer = self._attempt("/v1/models", None, deadline)
            try:
                self._name = str(answer["data"][0]["id"])
            except (KeyError, IndexError, TypeError) as error:
                raise ModelUnavailable(f"{self._endpoint}/v1/models: {status}: lists no model") from error
        return self._name

    def _attempt(self, path: str, body: dict[str, Any] | None, deadline: float) -> tuple[int, Any]:
        """One exchange, repeated after a broken connection, an overload (429) or a failure of the server (5xx)."""
        pause = FIRST_PAUSE
        for attempt in range(1, ATTEMPTS + 1):
            try:
                status, answer = exchange(self._endpoint, path, body, deadline, self._headers)
                if status == 504:
                    raise ModelTimeout(f"{self._endpoint}{path}: {error_text(answer)}")
                if status != 429 and (status < 500 or status == 501):
                    return status, answer
                failure = ModelUnavailable(f"{self._endpoint}{path}: {status}: {error_text(answer)}")
            except ModelUnavailable as error:
                failure = error
            # Arms that failed together must not come back together.
            wait = pause * random.uniform(0.5, 1.5)
            if attempt == ATTEMPTS or time.monotonic() + wait >= deadline:
                raise failure
            time.sleep(wait)
            pause *= 2
        raise AssertionError("unreachable")


def _tokens(answer: Any) -> list[int]:
    try:
        return [int(token) for token in answer["tokens"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelUnavailable(f"/tokenize gave no tokens: {answer!r:.200}") from error


def _read_prompt_logprobs(positions: Sequence[Any], start: int, answer: Sequence[int]) -> list[float]:
    """From vLLM's form: at each position a table from token id (as text) to log-probability, null at the first."""
    try:
        return _finite([positions[start + k][str(token)]["logprob"] for k, token in enumerate(answer)])
    except (KeyError, IndexError, TypeError) as error:
        raise ModelUnavailable(f"prompt_logprobs lacks a candidate's token: {error!r}") from error


def _echoed(choice: dict[str, Any], endpoint: Endpoint) -> Any:
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict) or "token_logprobs" not in logprobs or "text_offset" not in logprobs:
        raise ModelRefused(
            f"{endpoint} gives no log-probabilities of prompt tokens (neither prompt_logprobs nor echo with logprobs); "
            "such a server cannot score candidates"
        )
    return logprobs


def _finite(values: Sequence[Any]) -> list[float]:
    if not values or not all(isinstance(value, (int, float)) and value <= 0.001 for value in values):
        raise ModelUnavailable(f"not the log-probabilities of a candidate: {values!r:.200}")
    return [float(value) for value in values]
