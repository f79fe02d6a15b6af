"""The model server as a real process with the real model: shared, killed, stopped, restarted, flooded."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from model_samples import CANDIDATES, NAME, PROMPT

from polyarm_core.errors import InvalidValue
from polyarm_core.llm.client import ServerModel
from polyarm_core.llm.interface import ModelError, ModelRefused, ModelTimeout, ModelUnavailable, Prompt
from polyarm_core.llm.process import ServerProcess


def prompts(count: int) -> list[Prompt]:
    return [Prompt(PROMPT.static, f"Slot {k}. {PROMPT.dynamic}") for k in range(count)]


def post(url: str, path: str, body: object, raw: bytes | None = None) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("POST", path, body=raw if raw is not None else json.dumps(body).encode())
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_arms_that_ask_together_are_served_as_a_batch_with_the_scores_of_the_model_itself(server, model) -> None:
    before = server.client.health()
    items = [(prompt, CANDIDATES) for prompt in prompts(6)]
    answers = server.client.score_batch(items)
    after = server.client.health()
    assert after["answered"] - before["answered"] == 6
    assert after["batches"] - before["batches"] < 6 and after["largest_batch"] >= 2
    for answer, (prompt, candidates) in zip(answers, items, strict=True):
        expected = model.score(prompt, candidates)
        assert answer.mean_logprobs == pytest.approx(expected.mean_logprobs, abs=2e-4)
        assert (answer.prompt_tokens, answer.candidate_tokens) == (expected.prompt_tokens, expected.candidate_tokens)


def test_text_through_the_server_is_that_of_the_model_itself(server, model) -> None:
    grammar = "move (red|blue) to pad[0-9]"
    assert server.client.generate(PROMPT, grammar).text == model.generate(PROMPT, grammar).text


def test_a_stopped_server_costs_the_deadline_and_no_more(server) -> None:
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(ModelTimeout):
            server.client.score(PROMPT, CANDIDATES, timeout=0.5)
        assert time.monotonic() - started < 5.0
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert len(server.client.score(PROMPT, CANDIDATES).mean_logprobs) == len(CANDIDATES)


def test_a_request_that_nobody_waits_for_any_more_is_dropped(server) -> None:
    """A long generation keeps the model busy; a decision with a short deadline comes late and is never computed."""
    before = server.client.health()
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(server.client.generate, PROMPT, "[a-z]{60}", 60)
        wait_until(lambda: server.client.health()["batches"] > before["batches"])
        with pytest.raises(ModelTimeout):
            server.client.score(PROMPT, CANDIDATES, timeout=0.05)
        long.result(60)
    wait_until(lambda: server.client.health()["late"] == before["late"] + 1)
    after = server.client.health()
    assert after["answered"] == before["answered"] + 1 and after["queued"] == 0


def test_generation_on_the_server_ends_at_its_deadline(server) -> None:
    with pytest.raises(ModelTimeout):
        server.client.generate(PROMPT, "[a-z]{2000}", 2000, timeout=0.5)
    started = time.monotonic()
    server.client.score(PROMPT, CANDIDATES)  # the worker is free again, long before 2000 tokens are written
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/score", {"dynamic": "x", "candidates": []}, 400, "candidates"),
        ("/score", {"dynamic": "x", "candidates": [1]}, 400, "candidates"),
        ("/score", {"dynamic": 5, "candidates": ["a"]}, 400, "dynamic"),
        ("/score", {"dynamic": "x", "candidates": ["a"], "deadline_s": "soon"}, 400, "deadline_s"),
        ("/score", {"dynamic": "x", "candidates": ["a"], "deadline_s": -1}, 400, "deadline_s"),
        ("/score", {"dynamic": " ", "candidates": ["a"]}, 400, "blank"),
        ("/score", {"dynamic": "x " * 9000, "candidates": ["a"]}, 400, "reads at most"),
        ("/score", [], 400, "expected an object"),
        ("/generate", {"dynamic": "x", "grammar": "((("}, 400, "not well formed"),
        ("/generate", {"dynamic": "x", "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": [999999]}, 400, "token id"),
        ("/v1/completions", {"prompt": "x", "model": "gpt"}, 400, "gpt"),
        ("/v1/completions", {"prompt": "x", "temperature": 1}, 400, "temperature"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"prompt": "x", "structured_outputs": {"json": {}}}, 400, "structured_outputs"),
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"messages": [{"role": 1}]}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400, "template"),
        ("/nowhere", {}, 404, "/score"),
    ],
)
def test_malformed_requests_are_refused_with_the_reason(server, path, body, status, message) -> None:
    found, answer = post(server.port_file.read_text(), path, body)
    assert found == status
    assert message in json.dumps(answer)


def test_bodies_that_are_no_json_or_too_long_are_refused(server) -> None:
    url = server.port_file.read_text()
    assert post(url, "/score", None, raw=b"\xff{")[0] == 400
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/score")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 400
    assert server.client.health()["status"] == "ready"


def test_a_full_queue_answers_at_once() -> None:
    """Twelve decisions, a queue of two and a worker that gathers for a second: ten are turned away, none hangs."""
    with ServerProcess(backend="heuristic", more=["--queue", "2", "--window", "1"], timeout=20) as server:

        def ask(prompt: Prompt) -> str:
            try:
                server.client.score(prompt, CANDIDATES)
            except ModelUnavailable as error:
                return "full" if "queue is full" in str(error) else str(error)
            return "answered"

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(ask, prompts(12)))
        assert set(answers) == {"answered", "full"}
        assert answers.count("full") == server.client.health()["overloaded"]
        assert server.stop() == 0


def test_a_killed_server_is_noticed_and_a_restarted_one_is_found_again() -> None:
    with ServerProcess(NAME, more=["--dtype", "float32"], timeout=30) as server:
        first = server.client.score(PROMPT, CANDIDATES)
        failures: list[Exception] = []

        def ask() -> None:
            try:
                server.client.generate(PROMPT, "[a-z]{500}", 500)
            except ModelError as error:
                failures.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: server.client.health()["batches"] >= 2)
        server.process.kill()  # in the middle of a computation
        server.process.wait(10)
        asking.join(20)
        assert [type(error) for error in failures] == [ModelUnavailable]
        with pytest.raises(ModelUnavailable):
            server.client.score(PROMPT, CANDIDATES, timeout=5)
        server.start()
        again = server.client.score(PROMPT, CANDIDATES)
        assert again.mean_logprobs == first.mean_logprobs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loading", [True, False])
def test_a_signal_ends_the_server_cleanly(number, loading, tmp_path) -> None:
    port_file = tmp_path / "url"
    arguments = ["--model", NAME] if loading else ["--backend", "heuristic"]
    process = subprocess.Popen(
        [sys.executable, "-m", "polyarm_core.llm.server", *arguments, "--port-file", str(port_file)],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(port_file.exists)
    if not loading:
        ServerModel(port_file=port_file).wait_ready(20)
    process.send_signal(number)
    _, written = process.communicate(timeout=10)
    assert (process.returncode, written) == (0, "")
    assert not port_file.exists()


def test_a_server_ends_with_the_process_that_started_it(tmp_path) -> None:
    port_file = tmp_path / "url"
    code = (
        "import subprocess, sys, time; from polyarm_core.llm.process import server_command; "
        f"subprocess.Popen(server_command('', {str(port_file)!r}, 'heuristic')); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    client = ServerModel(port_file=port_file)
    client.wait_ready(20)
    parent.kill()
    parent.wait(10)
    wait_until(lambda: not port_file.exists())


def test_a_model_that_cannot_be_loaded_ends_the_server_with_the_reason() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "polyarm_core.llm.server", "--model", "no-such-model"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert NAME in run.stderr and "Traceback" not in run.stderr


def test_requests_wait_for_a_model_that_is_still_loading() -> None:
    process = ServerProcess(NAME, timeout=60)
    try:
        process.start(wait=None)
        wait_until(process.port_file.exists)
        assert process.client.health()["status"] == "loading"
        assert len(process.client.score(PROMPT, CANDIDATES).mean_logprobs) == len(CANDIDATES)
    finally:
        process.stop()


def test_a_client_needs_one_address() -> None:
    for arguments in ({}, {"url": "http://127.0.0.1:1", "port_file": "x"}, {"url": "127.0.0.1:1"}, {"url": "ftp://x"}):
        with pytest.raises(InvalidValue, match="url"):
            ServerModel(**arguments)
    with pytest.raises(InvalidValue, match="timeout"):
        ServerModel("http://127.0.0.1:1", timeout=0)
    with pytest.raises(ModelUnavailable):
        ServerModel("http://127.0.0.1:1").wait_ready(0.3)
    with pytest.raises(ModelUnavailable, match="no model server has written"):
        ServerModel(port_file="/nonexistent/url").score(PROMPT, CANDIDATES)
    with pytest.raises(ModelRefused):
        ServerModel("http://127.0.0.1:1").score(PROMPT, [])
