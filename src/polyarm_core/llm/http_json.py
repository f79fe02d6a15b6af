"""JSON over HTTP with one hard deadline for the whole exchange (standard library only)."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from polyarm_core.errors import InvalidValue
from polyarm_core.llm.interface import ModelTimeout, ModelUnavailable

MAX_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens: scheme, host, port and the path that its base URL ends with."""

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """From a base URL such as ``http://127.0.0.1:8000``.

        Raises:
            InvalidValue: no http(s) URL with a host.
        """
        try:
            parts = urlsplit(url.strip())
            secure = parts.scheme == "https"
            port = parts.port or (443 if secure else 80)
        except ValueError as error:
            raise InvalidValue("url", url, f"http://HOST:PORT ({error})") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidValue("url", url, "http://HOST:PORT or https://HOST:PORT")
        return cls(secure, parts.hostname, port, parts.path.rstrip("/"))

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}{self.path}"


def exchange(
    endpoint: Endpoint,
    path: str,
    body: object | None,
    deadline: float,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """One request on a connection of its own, so that a server that was restarted is simply found again.

    Args:
        endpoint: the server.
        path: appended to the endpoint's path.
        body: sent as JSON with POST; None = GET.
        deadline: when the answer must be complete, on the clock of ``time.monotonic``. It holds for the sum of
            connecting, sending, waiting and reading, whatever the server does (only the look-up of a host name is not
            bounded by it).
        headers: added to the request.

    Returns:
        the HTTP status and the decoded JSON object (a ``dict`` with ``error`` where the answer is no JSON).

    Raises:
        ModelTimeout: the deadline passed.
        ModelUnavailable: nobody listens there, or the connection broke.
    """
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise ModelTimeout(f"{endpoint}{path}: no time left before the deadline")
    kind = http.client.HTTPSConnection if endpoint.secure else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=remaining)
    expired = threading.Event()

    def expire() -> None:
        # A socket's own timeout starts anew with every byte; ending the connection bounds the sum.
        expired.set()
        if connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    watchdog = threading.Timer(remaining, expire)
    watchdog.daemon = True
    watchdog.start()
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(
            "GET" if data is None else "POST",
            endpoint.path + path,
            body=data,
            headers={"Content-Type": "application/json", "Connection": "close", **(headers or {})},
        )
        response = connection.getresponse()
        raw = response.read(MAX_ANSWER_BYTES + 1)
        if expired.is_set():
            raise TimeoutError
        if len(raw) > MAX_ANSWER_BYTES:
            raise ModelUnavailable(f"{endpoint}{path}: the answer is longer than {MAX_ANSWER_BYTES} bytes")
        try:
            return response.status, json.loads(raw) if raw.strip() else {}
        except ValueError:
            return response.status, {"error": {"message": raw[:200].decode(errors="replace")}}
    except TimeoutError as error:  # socket.timeout is this one since Python 3.10
        raise ModelTimeout(f"{endpoint}{path}: no answer within {remaining:.3g} s") from error
    except (OSError, http.client.HTTPException) as error:
        if expired.is_set():
            raise ModelTimeout(f"{endpoint}{path}: no answer within {remaining:.3g} s") from error
        raise ModelUnavailable(f"{endpoint}{path}: {error or type(error).__name__}") from error
    finally:
        watchdog.cancel()
        connection.close()


def error_text(answer: object) -> str:
    """The message of an error answer, whichever of the usual forms it has."""
    if isinstance(answer, dict):
        error = answer.get("error", answer.get("detail", answer.get("message", answer)))
        return str(error.get("message", error)) if isinstance(error, dict) else str(error)
    return str(answer)
