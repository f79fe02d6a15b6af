"""The OpenAI-compatible backend against Polyarm's own server, and against vLLM where one is running."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from model_samples import CANDIDATES, NAME, PROMPT

from polyarm_core.errors import InvalidValue
from polyarm_core.llm.http_json import Endpoint, exchange
from polyarm_core.llm.interface import ModelRefused, ModelTimeout, ModelUnavailable, Prompt, choose
from polyarm_core.llm.openai_backend import OpenAIModel

GRAMMAR = 'start: "move " COLOUR " to pad" /[0-9]/\nCOLOUR: "red" | "blue"'


class Relay(BaseHTTPRequestHandler):
    """Passes requests on to the real server, but has no ``/tokenize``, and fails as often as it is told to."""

    target: str
    failures: int = 0

    def do_POST(self) -> None:
        import json

        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            status, answer = 404, {"detail": "Not Found"}
        elif type(self).failures > 0:
            type(self).failures -= 1
            status, answer = 503, {"error": {"message": "busy"}}
        else:
            status, answer = exchange(Endpoint.parse(self.target), self.path, body, time.monotonic() + 60)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def relay(server) -> Iterator[str]:
    Relay.target, Relay.failures = server.port_file.read_text(), 0
    http = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{http.server_address[1]}"
    http.shutdown()
    http.server_close()


@pytest.mark.parametrize("scoring", ["auto", "prompt_logprobs", "echo"])
def test_scores_are_those_of_the_model_itself(server, model, scoring) -> None:
    remote = OpenAIModel(server.port_file.read_text() + "/v1", NAME, timeout=60, scoring=scoring)
    found, expected = remote.score(PROMPT, CANDIDATES), model.score(PROMPT, CANDIDATES)
    assert found.mean_logprobs == pytest.approx(expected.mean_logprobs, abs=1e-3)
    assert (found.prompt_tokens, found.candidate_tokens) == (expected.prompt_tokens, expected.candidate_tokens)
    assert choose(found.mean_logprobs) == choose(expected.mean_logprobs)


def test_decisions_of_a_slot_come_back_in_their_order(server, model) -> None:
    remote = OpenAIModel(server.port_file.read_text(), timeout=60)  # no name: the one that the server lists
    items = [(Prompt(PROMPT.static, f"Slot {k}. Act."), CANDIDATES[k:]) for k in range(3)]
    for found, (prompt, candidates) in zip(remote.score_batch(items), items, strict=True):
        assert found.mean_logprobs == pytest.approx(model.score(prompt, candidates).mean_logprobs, abs=1e-3)


@pytest.mark.parametrize("grammar", [GRAMMAR, "(left|right) [0-9]", None])
def test_text_is_that_of_the_model_itself(server, model, grammar) -> None:
    remote = OpenAIModel(server.port_file.read_text(), NAME, timeout=60)
    found, expected = remote.generate(PROMPT, grammar, 12), model.generate(PROMPT, grammar, 12)
    assert (found.text, found.tokens, found.finished) == (expected.text, expected.tokens, expected.finished)


def test_a_server_that_does_not_tokenize_is_scored_by_text_offsets(relay, model, monkeypatch) -> None:
    remote = OpenAIModel(relay, NAME, timeout=60)
    found = remote.score(PROMPT, CANDIDATES)
    monkeypatch.setattr(model._tokenizer, "chat_template", None)  # such a server gets plain text
    expected = model.score(PROMPT, CANDIDATES)
    assert found.mean_logprobs == pytest.approx(expected.mean_logprobs, abs=1e-3)
    assert found.candidate_tokens == expected.candidate_tokens


def test_passing_failures_are_retried_and_lasting_ones_reported(relay) -> None:
    remote = OpenAIModel(relay, NAME, timeout=60)
    Relay.failures = 2
    assert len(remote.score(PROMPT, CANDIDATES).mean_logprobs) == len(CANDIDATES)
    Relay.failures = 3
    with pytest.raises(ModelUnavailable, match="503: busy"):
        remote.score(PROMPT, CANDIDATES)
    assert Relay.failures == 0


def test_requests_that_the_server_refuses_are_not_repeated(server) -> None:
    before = server.client.health()
    remote = OpenAIModel(server.port_file.read_text(), "another-model", timeout=60)
    with pytest.raises(ModelRefused, match="another-model"):
        remote.generate(PROMPT)
    assert server.client.health()["failed"] == before["failed"]
    with pytest.raises(ModelRefused, match="well formed"):
        OpenAIModel(server.port_file.read_text(), timeout=60).generate(PROMPT, "(((")


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        remote = OpenAIModel(f"http://127.0.0.1:{unused.getsockname()[1]}", NAME, timeout=5)
        with pytest.raises(ModelUnavailable, match="refused"):
            remote.score(PROMPT, CANDIDATES)


@pytest.mark.parametrize("drip", [b"", b"HTTP/1.1 200 OK\r\n"])
def test_a_server_that_says_nothing_or_dribbles_costs_the_deadline(drip) -> None:
    """A byte now and then must not keep a call alive."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def dribble() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(drip)
                while not stop.wait(0.05):
                    try:
                        if drip:
                            connection.sendall(b"X")
                    except OSError:
                        return

        thread = threading.Thread(target=dribble)
        thread.start()
        started = time.monotonic()
        try:
            with pytest.raises(ModelTimeout):
                OpenAIModel(f"http://127.0.0.1:{listener.getsockname()[1]}", NAME, timeout=0.6).score(PROMPT, ["a"])
            assert time.monotonic() - started < 5.0
        finally:
            stop.set()
            thread.join(10)


@pytest.mark.parametrize(
    "arguments", [{"url": "localhost:8000"}, {"url": "http://h", "timeout": 0}, {"url": "http://h", "scoring": "beam"}]
)
def test_settings_are_checked(arguments) -> None:
    with pytest.raises(InvalidValue):
        OpenAIModel(**arguments)


@pytest.mark.vllm
@pytest.mark.skipif(
    "POLYARM_VLLM_URL" not in os.environ,
    reason="needs a vLLM server that serves the default model; POLYARM_VLLM_URL names it",
)
def test_vllm_agrees_with_the_model_itself(model) -> None:
    url = os.environ.get("POLYARM_VLLM_URL", "")
    remote, expected = OpenAIModel(url, timeout=120), model.score(PROMPT, CANDIDATES)
    found = remote.score(PROMPT, CANDIDATES)
    assert found.mean_logprobs == pytest.approx(expected.mean_logprobs, abs=0.1)
    assert choose(found.mean_logprobs, noise=0.07) == choose(expected.mean_logprobs, noise=0.07)
    echoed = OpenAIModel(url, timeout=120, scoring="echo").score(PROMPT, CANDIDATES)
    assert echoed.mean_logprobs == pytest.approx(found.mean_logprobs, abs=0.05)
    import re

    for grammar, pattern in ((GRAMMAR, "move (red|blue) to pad[0-9]"), ("(left|right) [0-9]", "(left|right) [0-9]")):
        assert re.fullmatch(pattern, remote.generate(PROMPT, grammar, 20).text)
