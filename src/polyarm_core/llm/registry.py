"""From a scenario's ``models:`` entry to a model that answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.llm.interface import LanguageModel

if TYPE_CHECKING:
    from polyarm_core.scenario import ModelSpec


def open_model(spec: ModelSpec, *, url: str | None = None, port_file: Path | str | None = None) -> LanguageModel:
    """Open the model that a scenario names. Heavy libraries are imported here, for the backend that needs them.

    Args:
        spec: the scenario's entry.
        url: where a server already holds this model: Polyarm's own for ``transformers`` and ``server``, an
            OpenAI-compatible one for ``openai``. Goes before ``spec.url``.
        port_file: file that holds the URL of Polyarm's own server; instead of ``url``.

    Raises:
        UnknownName: no such backend.
        InvalidValue: a server without an address.
        MissingExtra, ModelError: the backend's library or the weights are not there.
    """
    try:
        opener = _OPENERS[spec.backend]
    except KeyError:
        raise UnknownName("backend", spec.backend, _OPENERS) from None
    return opener(spec, url or spec.url, port_file)


def _transformers(spec: ModelSpec, url: str | None, port_file: Path | str | None) -> LanguageModel:
    if url is not None or port_file is not None:
        return _server(spec, url, port_file)
    from polyarm_core.llm.transformers_backend import TransformersModel

    return TransformersModel(spec.name, threads=spec.threads, dtype=spec.dtype)


def _server(spec: ModelSpec, url: str | None, port_file: Path | str | None) -> LanguageModel:
    if url is None and port_file is None:
        raise InvalidValue("url", url, "the address of a model server (python -m polyarm_core.llm.server)")
    from polyarm_core.llm.client import ServerModel

    if port_file is not None:
        return ServerModel(port_file=port_file, timeout=spec.timeout)
    return ServerModel(url, timeout=spec.timeout)


def _openai(spec: ModelSpec, url: str | None, port_file: Path | str | None) -> LanguageModel:
    if url is None:
        raise InvalidValue("url", url, "the base address of an OpenAI-compatible server, e.g. http://127.0.0.1:8000")
    from polyarm_core.llm.openai_backend import OpenAIModel

    return OpenAIModel(url, spec.name, timeout=spec.timeout)


def _heuristic(spec: ModelSpec, url: str | None, port_file: Path | str | None) -> LanguageModel:
    from polyarm_core.llm.heuristic_backend import HeuristicModel

    return HeuristicModel()


_OPENERS: dict[str, Callable[[ModelSpec, str | None, Path | str | None], LanguageModel]] = {
    "transformers": _transformers,
    "server": _server,
    "openai": _openai,
    "heuristic": _heuristic,
}
