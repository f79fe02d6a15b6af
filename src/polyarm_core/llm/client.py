"""A model in another process: :class:`ServerModel` asks Polyarm's model server and never waits past its deadline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from polyarm_core.errors import InvalidValue
from polyarm_core.llm.http_json import Endpoint, error_text, exchange
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
)

DEFAULT_TIMEOUT = 15.0


class ServerModel:
    """Client of :mod:`polyarm_core.llm.server`.

    Holds no connection: a server that died fails the calls of that time only, and one that was restarted, even on
    another port when a port file is used, answers the next call.

    Args:
        url: ``http://HOST:PORT`` of the server, or
        port_file: the file into which the server writes its URL (``--port-file``); read anew for every call.
        timeout: longest that one call may take, seconds.

    Raises:
        InvalidValue: neither or both of ``url`` and ``port_file``, a malformed URL, or a timeout that is not positive.
    """

    def __init__(
        self, url: str | None = None, *, port_file: Path | str | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        if (url is None) == (port_file is None):
            raise InvalidValue("url", url, "either url or port_file")
        if not timeout > 0:
            raise InvalidValue("timeout", timeout, "seconds > 0")
        self.timeout = timeout
        self._endpoint = Endpoint.parse(url) if url is not None else None
        self._port_file = Path(port_file) if port_file is not None else None

    def score(self, prompt: Prompt, candidates: Sequence[str], timeout: float | None = None) -> Scores:
        """Mean token log-probability of each candidate (eq. 6).

        Args:
            prompt, candidates: as in :class:`~polyarm_core.llm.interface.LanguageModel`.
            timeout: for this call, seconds; default the client's.

        Raises:
            ModelUnavailable: no server there, it broke the connection, or it is overloaded.
            ModelTimeout: no answer within the timeout.
            ModelRefused: the server does not accept the request.
        """
        texts = check_candidates(candidates)
        answer = self._post("/score", _body(prompt, candidates=texts), timeout)
        try:
            scores = Scores(
                mean_logprobs=tuple(float(value) for value in answer["mean_logprobs"]),
                prompt_tokens=int(answer["prompt_tokens"]),
                candidate_tokens=int(answer["candidate_tokens"]),
                seconds=float(answer["seconds"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelUnavailable(f"{self._where()}/score: not a model server's answer: {answer!r:.200}") from error
        if len(scores.mean_logprobs) != len(texts):
            raise ModelUnavailable(f"{self._where()}/score: {len(scores.mean_logprobs)} scores for {len(texts)} texts")
        return scores

    def score_batch(self, items: Sequence[tuple[Prompt, Sequence[str]]]) -> list[Scores]:
        """All decisions at once, each a request of its own; the server gathers them. Raises as :meth:`score`."""
        if not items:
            return []
        with ThreadPoolExecutor(max_workers=len(items)) as pool:
            return list(pool.map(lambda item: self.score(*item), items))

    def generate(
        self,
        prompt: Prompt,
        grammar: str | None = None,
        max_tokens: int = MAX_GENERATED_TOKENS,
        timeout: float | None = None,
    ) -> Generation:
        """Text, free or constrained by a grammar. Raises as :meth:`score`."""
        answer = self._post("/generate", _body(prompt, grammar=grammar, max_tokens=max_tokens), timeout)
        try:
            return Generation(
                text=str(answer["text"]),
                prompt_tokens=int(answer["prompt_tokens"]),
                tokens=int(answer["tokens"]),
                seconds=float(answer["seconds"]),
                finished=bool(answer["finished"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelUnavailable(f"{self._where()}/generate: unexpected answer {answer!r:.200}") from error

    def health(self, timeout: float = 2.0) -> dict[str, Any]:
        """What the server says about itself: ``status`` (``loading``, ``ready``), model, counters.

        Raises:
            ModelUnavailable, ModelTimeout: as :meth:`score`.
        """
        _, answer = exchange(self._where(), "/health", None, time.monotonic() + timeout)
        if not isinstance(answer, dict) or "status" not in answer:
            raise ModelUnavailable(f"{self._where()}/health: not a model server's answer: {answer!r:.200}")
        return answer

    def wait_ready(self, timeout: float = 120.0) -> dict[str, Any]:
        """Wait until the server has loaded its model.

        Raises:
            ModelUnavailable: it has not within ``timeout`` seconds; says what was heard last.
        """
        deadline = time.monotonic() + timeout
        heard = "nothing"
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                health = self.health(timeout=min(2.0, remaining))
                if health["status"] == "ready":
                    return health
                heard = str(health["status"])
            except ModelError as error:
                heard = str(error)
            time.sleep(min(0.05, remaining))
        raise ModelUnavailable(f"the model server was not ready within {timeout:g} s; heard last: {heard}")

    def _where(self) -> Endpoint:
        if self._port_file is None:
            assert self._endpoint is not None
            return self._endpoint
        try:
            return Endpoint.parse(self._port_file.read_text(encoding="utf-8"))
        except (OSError, InvalidValue) as error:
            raise ModelUnavailable(f"no model server has written its address to {self._port_file}") from error

    def _post(self, path: str, body: dict[str, Any], timeout: float | None) -> Any:
        limit = self.timeout if timeout is None else timeout
        where = self._where()
        status, answer = exchange(where, path, {**body, "deadline_s": limit}, time.monotonic() + limit)
        if status == 200:
            return answer
        message = f"{where}{path}: {status}: {error_text(answer)}"
        if status == 504:
            raise ModelTimeout(message)
        if status in (400, 404, 405, 413):
            raise ModelRefused(message)
        raise ModelUnavailable(message)


def _body(prompt: Prompt, **more: object) -> dict[str, Any]:
    return {"static": prompt.static, "dynamic": prompt.dynamic, **more}
