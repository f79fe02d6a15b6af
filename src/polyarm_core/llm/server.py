"""The model server: a process of its own that holds one copy of a model for all arms that name it.

``python -m polyarm_core.llm.server --model NAME --port 0 --port-file FILE``

One worker computes, whatever the number of arms that ask. It gathers the decisions of a slot for a few milliseconds,
takes the most urgent first, drops those that nobody waits for any more, and answers each as soon as it is done. (On
one or two cores packing several decisions into one forward pass is no faster than one after the other, and a decision's
scores would depend on who else asked.) When the queue is full the answer is an error at once, not a late one.

End points: ``POST /score {static, dynamic, candidates, deadline_s}``, ``POST /generate {static, dynamic, grammar,
max_tokens, deadline_s}``, ``GET /health``, and, in the form of OpenAI and vLLM, ``GET /v1/models``,
``POST /v1/completions``, ``POST /tokenize``. Errors are ``{"error": {"type", "message"}}`` with status 400 (refused),
503 (overloaded or stopping) or 504 (deadline passed).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from polyarm_core.errors import PolyarmError
from polyarm_core.llm.interface import (
    MAX_GENERATED_TOKENS,
    LanguageModel,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    Prompt,
)

if TYPE_CHECKING:
    from polyarm_core.llm.transformers_backend import TransformersModel

log = logging.getLogger("polyarm.model_server")

MAX_BODY_BYTES = 4 << 20
MAX_CANDIDATES = 1024
MAX_DEADLINE = 600.0  # seconds
DEFAULT_DEADLINE = 60.0  # seconds, for requests that name none
QUEUE_LENGTH = 64
WINDOW = 0.002  # seconds


@dataclass(slots=True)
class Job:
    """A computation that somebody waits for until ``deadline`` (``time.monotonic``)."""

    compute: Callable[[], Any]
    deadline: float
    answer: Future[Any] = field(default_factory=Future)


@dataclass(slots=True)
class Counters:
    """What the worker did since it started."""

    batches: int = 0
    largest_batch: int = 0
    answered: int = 0
    failed: int = 0
    late: int = 0
    overloaded: int = 0


class Worker:
    """The queue and the one thread that computes.

    Args:
        window: after the first request of a batch, how long to wait for the others of the same slot, seconds.
        limit: longest queue.
    """

    def __init__(self, window: float = WINDOW, limit: int = QUEUE_LENGTH) -> None:
        self.window = window
        self.limit = limit
        self.counters = Counters()
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="model-worker", daemon=True)

    def start(self) -> None:
        """Begin to compute; what was submitted before has waited in the queue."""
        self._thread.start()

    def submit(self, compute: Callable[[], Any], deadline: float) -> Future[Any]:
        """Queue a computation.

        Raises:
            ModelUnavailable: the queue is full or the server is stopping.
        """
        job = Job(compute, deadline)
        with self._changed:
            if self._stopping:
                raise ModelUnavailable("the model server is stopping")
            if len(self._jobs) >= self.limit:
                self.counters.overloaded += 1
                raise ModelUnavailable(f"the model server's queue is full ({self.limit} requests)")
            self._jobs.append(job)
            self._changed.notify()
        return job.answer

    def queued(self) -> int:
        """How many requests wait."""
        return len(self._jobs)

    def stop(self) -> None:
        """Refuse what waits and what comes; a computation in progress is left to itself."""
        with self._changed:
            self._stopping = True
            waiting, self._jobs = self._jobs, []
            self._changed.notify_all()
        for job in waiting:
            if job.answer.set_running_or_notify_cancel():
                job.answer.set_exception(ModelUnavailable("the model server is stopping"))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
            time.sleep(self.window)
            with self._changed:
                batch, self._jobs = self._jobs, []
            self.counters.batches += bool(batch)
            self.counters.largest_batch = max(self.counters.largest_batch, len(batch))
            for job in sorted(batch, key=lambda job: job.deadline):
                self._compute(job)

    def _compute(self, job: Job) -> None:
        if not job.answer.set_running_or_notify_cancel():  # its client has gone
            self.counters.late += 1
        elif self._stopping:
            job.answer.set_exception(ModelUnavailable("the model server is stopping"))
        elif time.monotonic() > job.deadline:
            self.counters.late += 1
            job.answer.set_exception(ModelTimeout("the deadline passed before the model was free"))
        else:
            try:
                job.answer.set_result(job.compute())
                self.counters.answered += 1
            except Exception as error:  # whatever a model raises, the next request is served
                self.counters.failed += 1
                if not isinstance(error, PolyarmError):
                    log.exception("a request failed")
                job.answer.set_exception(error)


class ModelServer(ThreadingHTTPServer):
    """HTTP side of the server; ``model`` is None until it is loaded."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], name: str, worker: Worker) -> None:
        super().__init__(address, Handler)
        self.name = name
        self.worker = worker
        self.model: LanguageModel | None = None
        self.started = time.monotonic()

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event; anything else is logged."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            log.exception("connection from %s failed", client_address)

    def transformers_model(self) -> TransformersModel:
        """The model, where it is one that deals in tokens.

        Raises:
            ModelUnavailable: still loading.
            ModelRefused: another backend.
        """
        from polyarm_core.llm.transformers_backend import TransformersModel

        if self.model is None:
            raise ModelUnavailable("the model is still loading")
        if not isinstance(self.model, TransformersModel):
            raise ModelRefused(f"{self.name} has no tokens; this end point needs the transformers backend")
        return self.model

    def loaded_model(self) -> LanguageModel:
        """The model; only asked by the worker, which starts after loading."""
        assert self.model is not None
        return self.model


class Handler(BaseHTTPRequestHandler):
    """One request; runs in a thread of its own and waits there for the worker."""

    protocol_version = "HTTP/1.1"
    server_version = "polyarm"
    sys_version = ""
    timeout = 30.0  # seconds without a byte from the client
    wbufsize = -1  # head and body leave in one segment; two would wait 40 ms for an acknowledgement
    disable_nagle_algorithm = True
    server: ModelServer

    def do_GET(self) -> None:
        """Answer ``/health`` and ``/v1/models``."""
        if self.path == "/health":
            ready = self.server.model is not None
            self._answer(200 if ready else 503, self._health("ready" if ready else "loading"))
        elif self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": self.server.name, "object": "model"}]})
        else:
            self._fail(404, "NotFound", f"no GET {self.path}; there are /health and /v1/models")

    def do_POST(self) -> None:
        """Answer the end points that compute."""
        routes = {
            "/score": self._score,
            "/generate": self._generate,
            "/tokenize": self._tokenize,
            "/v1/completions": self._completions,
        }
        route = routes.get(self.path)
        try:
            body = self._read()
            if route is None:
                self._fail(404, "NotFound", f"no POST {self.path}; there are {', '.join(routes)}")
            else:
                self._answer(200, route(body))
        except ModelRefused as error:
            self._fail(400, "ModelRefused", str(error))
        except (ModelTimeout, FutureTimeout, CancelledError) as error:
            self._fail(504, "ModelTimeout", str(error) or "the deadline passed")
        except ModelUnavailable as error:
            self._fail(503, "ModelUnavailable", str(error))
        except PolyarmError as error:
            self._fail(400, type(error).__name__, str(error))
        except ConnectionError:
            self.close_connection = True
        except Exception as error:
            log.exception("POST %s failed", self.path)
            self._fail(500, type(error).__name__, str(error))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged one by one; ``/health`` counts them."""
        log.debug(format, *args)

    # -- end points ---------------------------------------------------------------------------------------------------

    def _score(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = _prompt(body)
        candidates = _field(body, "candidates", list)
        if not 1 <= len(candidates) <= MAX_CANDIDATES or not all(isinstance(text, str) for text in candidates):
            raise ModelRefused(f"candidates: expected 1 to {MAX_CANDIDATES} texts")
        scores = self._compute(body, lambda _: self.server.loaded_model().score(prompt, candidates))
        return {
            "mean_logprobs": list(scores.mean_logprobs),
            "prompt_tokens": scores.prompt_tokens,
            "candidate_tokens": scores.candidate_tokens,
            "seconds": scores.seconds,
        }

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = _prompt(body)
        grammar = _field(body, "grammar", (str, type(None)), None)
        max_tokens = _count(body, "max_tokens", MAX_GENERATED_TOKENS)

        def compute(deadline: float) -> Any:
            model = self.server.loaded_model()
            if hasattr(model, "generate_after"):
                return self.server.transformers_model().generate(prompt, grammar, max_tokens, deadline)
            return model.generate(prompt, grammar, max_tokens)

        text = self._compute(body, compute)
        return {
            "text": text.text,
            "prompt_tokens": text.prompt_tokens,
            "tokens": text.tokens,
            "seconds": text.seconds,
            "finished": text.finished,
        }

    def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        model = self.server.transformers_model()
        special = bool(body.get("add_special_tokens", "messages" not in body))
        if "messages" in body:
            messages = _field(body, "messages", list)
            if not all(isinstance(m, dict) and all(isinstance(v, str) for v in m.values()) for m in messages):
                raise ModelRefused("messages: expected a list of {role, content} with texts")
            text = model.render_chat(messages)
        else:
            text = _field(body, "prompt", str)
        tokens = model.tokenize(text, add_special_tokens=special)
        return {"count": len(tokens), "max_model_len": model.context_length, "tokens": tokens}

    def _completions(self, body: dict[str, Any]) -> dict[str, Any]:
        model = self.server.transformers_model()
        if body.get("model", self.server.name) != self.server.name:
            raise ModelRefused(f"model {body['model']!r} is not served here; there is {self.server.name}")
        if body.get("n", 1) != 1 or body.get("stream") or body.get("temperature", 0) not in (0, None):
            raise ModelRefused("only n = 1, temperature = 0 and stream = false are served here")
        prompts = _prompts(model, body.get("prompt"))
        echo = bool(body.get("echo", False))
        max_tokens = _count(body, "max_tokens", 16, least=0)
        scored = body.get("prompt_logprobs") is not None or (echo and body.get("logprobs") is not None)
        grammar = _grammar(body.get("structured_outputs"))

        def compute(deadline: float) -> dict[str, Any]:
            rows = model.token_logprobs(prompts) if scored else [[] for _ in prompts]
            choices = []
            written = 0
            for index, (tokens, row) in enumerate(zip(prompts, rows, strict=True)):
                choice: dict[str, Any] = {"index": index, "text": "", "finish_reason": "length", "logprobs": None}
                # Scoring asks for one token only because the protocol wants one; it is not computed.
                if not scored and max_tokens:
                    text = model.generate_after(tokens, grammar, max_tokens, deadline)
                    choice |= {"text": text.text, "finish_reason": "stop" if text.finished else "length"}
                    written += text.tokens
                if body.get("prompt_logprobs") is not None:
                    choice["prompt_logprobs"] = [None] + [
                        {str(token): {"logprob": value}} for token, value in zip(tokens[1:], row, strict=True)
                    ]
                if echo:
                    pieces = model.token_texts(tokens)
                    choice["text"] = "".join(pieces) + choice["text"]
                    if scored:
                        offsets = [sum(map(len, pieces[:k])) for k in range(len(pieces))]
                        choice["logprobs"] = {
                            "tokens": pieces,
                            "token_logprobs": [None, *row],
                            "text_offset": offsets,
                            "top_logprobs": None,
                        }
                choices.append(choice)
            read = sum(map(len, prompts))
            return {
                "object": "text_completion",
                "model": self.server.name,
                "choices": choices,
                "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
            }

        answer: dict[str, Any] = self._compute(body, compute)
        return answer

    # -- plumbing -----------------------------------------------------------------------------------------------------

    def _compute(self, body: dict[str, Any], compute: Callable[[float], Any]) -> Any:
        limit = body.get("deadline_s", DEFAULT_DEADLINE)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit <= MAX_DEADLINE:
            raise ModelRefused(f"deadline_s = {limit!r}: expected seconds from 0 to {MAX_DEADLINE:g}")
        deadline = time.monotonic() + limit
        answer = self.server.worker.submit(lambda: compute(deadline), deadline)
        try:
            return answer.result(timeout=limit)
        finally:
            answer.cancel()  # no effect once it was computed; before that, nobody waits for it any more

    def _read(self) -> dict[str, Any]:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            raise ModelRefused("Content-Length is missing or no number") from None
        if not 0 <= length <= MAX_BODY_BYTES:
            self.close_connection = True  # the body is not read
            raise ModelRefused(f"{length} bytes; at most {MAX_BODY_BYTES} are read")
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            raise ModelRefused(f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise ModelRefused(f"the body is a JSON {type(body).__name__}; expected an object")
        return body

    def _health(self, status: str) -> dict[str, Any]:
        counters = self.server.worker.counters
        return {
            "status": status,
            "model": self.server.name,
            "pid": os.getpid(),
            "uptime_s": time.monotonic() - self.server.started,
            "queued": self.server.worker.queued(),
            **{name: getattr(counters, name) for name in counters.__slots__},
        }

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client did not wait
            self.close_connection = True

    def _fail(self, status: int, kind: str, message: str) -> None:
        self._answer(status, {"error": {"type": kind, "message": message}})


_MISSING = object()


def _field(body: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any = _MISSING) -> Any:
    value = body.get(key, default)
    if value is _MISSING or not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise ModelRefused(f"{key}: expected {' or '.join(k.__name__ for k in kinds)}")
    return value


def _count(body: dict[str, Any], key: str, default: int, least: int = 1) -> int:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ModelRefused(f"{key} = {value!r}: expected an integer >= {least}")
    return value


def _prompt(body: dict[str, Any]) -> Prompt:
    return Prompt(_field(body, "static", str, ""), _field(body, "dynamic", str, ""))


def _prompts(model: TransformersModel, prompt: Any) -> list[list[int]]:
    """OpenAI's four forms of a prompt as lists of token ids: a text, texts, token ids, lists of token ids."""
    forms = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)) else [prompt]
    if len(forms) > MAX_CANDIDATES:
        raise ModelRefused(f"prompt: at most {MAX_CANDIDATES} at once")
    result = []
    for form in forms:
        tokens = model.tokenize(form, add_special_tokens=True) if isinstance(form, str) else form
        if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
            raise ModelRefused("prompt: expected a text, token ids, or a list of these")
        result.append(tokens)
    return result


def _grammar(structured: Any) -> str | None:
    """``structured_outputs`` as vLLM takes it, as far as it is a regular expression or a Lark grammar."""
    if structured is None:
        return None
    if isinstance(structured, dict) and len(structured) == 1:
        ((kind, value),) = structured.items()
        if kind in ("regex", "grammar") and isinstance(value, str):
            return value
    raise ModelRefused("structured_outputs: expected {regex: text} or {grammar: text}")


def load(backend: str, name: str, threads: int, dtype: str) -> LanguageModel:
    """Load the model that this server holds. Raises what the backend raises."""
    if backend == "heuristic":
        from polyarm_core.llm.heuristic_backend import HeuristicModel

        return HeuristicModel()
    from polyarm_core.llm.transformers_backend import TransformersModel

    return TransformersModel(name, threads=threads, dtype=dtype)


def serve(arguments: argparse.Namespace) -> int:
    """Listen, load the model meanwhile, and serve until a signal comes. Returns the exit code."""
    end = threading.Event()
    failure: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    worker = Worker(arguments.window, arguments.queue)
    name = arguments.model or arguments.backend
    try:
        server = ModelServer((arguments.host, arguments.port), name, worker)
    except OSError as error:
        print(f"error: cannot listen on {arguments.host}:{arguments.port}: {error}", file=sys.stderr)
        return 1
    port_file = Path(arguments.port_file) if arguments.port_file else None
    if port_file is not None:
        port_file.parent.mkdir(parents=True, exist_ok=True)
        temporary = port_file.with_name(f".{port_file.name}.{os.getpid()}")
        temporary.write_text(server.url, encoding="utf-8")
        temporary.replace(port_file)

    def load_model() -> None:
        started = time.monotonic()
        try:
            server.model = load(arguments.backend, arguments.model, arguments.threads, arguments.dtype)
        except Exception as error:
            if not isinstance(error, PolyarmError):
                log.exception("loading failed")
            failure.append(f"error: model {name!r} cannot be loaded: {error}")
            end.set()
            return
        log.info("%s is ready after %.1f s", name, time.monotonic() - started)
        worker.start()

    threading.Thread(target=server.serve_forever, args=(0.1,), name="http", daemon=True).start()
    threading.Thread(target=load_model, name="loader", daemon=True).start()
    log.info("%s is served at %s", name, server.url)
    parent = os.getppid()
    while not end.wait(0.5):
        if arguments.exit_with_parent and os.getppid() != parent:
            break
    worker.stop()
    server.shutdown()
    server.server_close()
    if port_file is not None and _reads(port_file, server.url):
        port_file.unlink(missing_ok=True)
    for message in failure:
        print(message, file=sys.stderr)
    return 1 if failure else 0


def _reads(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except OSError:
        return False


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Command line of the server; ends the process.

    Args:
        argv: the arguments; default those of the process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m polyarm_core.llm.server", description="Serve one language model to all arms that name it."
    )
    parser.add_argument("--model", default="", help="packaged name, folder with weights or hub id")
    parser.add_argument("--backend", choices=("transformers", "heuristic"), default="transformers")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; anyone who reaches it may ask")
    parser.add_argument("--port", type=int, default=0, help="0 = any free port")
    parser.add_argument("--port-file", help="file into which the server's URL is written")
    parser.add_argument("--threads", type=int, default=1, help="more than one next to busy processes is slower")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--window", type=float, default=WINDOW, help="seconds to gather the decisions of a slot")
    parser.add_argument("--queue", type=int, default=QUEUE_LENGTH, help="requests that may wait")
    parser.add_argument("--exit-with-parent", action="store_true", help="end when the process that started this ends")
    parser.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    arguments = parser.parse_args(argv)
    if arguments.backend == "transformers" and not arguments.model:
        parser.error("--model is needed with the transformers backend")
    if arguments.threads < 1 or arguments.queue < 1 or not 0 <= arguments.window <= 10:
        parser.error("--threads and --queue must be at least 1, --window 0 to 10 seconds")
    logging.basicConfig(level=arguments.log_level.upper(), format="model server: %(message)s")
    code = serve(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may still be inside a computation; tearing the interpreter down under it would crash.
    os._exit(code)


if __name__ == "__main__":
    main()
