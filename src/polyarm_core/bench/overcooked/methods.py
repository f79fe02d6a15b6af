"""Methods by name: what is compared in the kitchen.

A method that plans is written ``COORDINATOR+TRIGGER`` or ``COORDINATOR+TRIGGER+repair``, e.g. ``search+closed+repair``:
who makes the plans, what asks for a new one, and whether a local repair is tried first. A model may be followed by how
it is decoded, ``sft/free+stall``; a learned detector by the network, ``search+closed/small_bce``. ``model+stall`` asks
a language model that the caller names (:class:`AskedModel`), e.g. one behind a server of vLLM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from polyarm_core.coordinator.prompts import VARIANTS, Variant
from polyarm_core.errors import InvalidValue, UnknownName

if TYPE_CHECKING:
    from polyarm_core.baselines.interface import Policy
    from polyarm_core.coordinator.episode import Policy as ReplanPolicy
    from polyarm_core.coordinator.interface import Coordinator
    from polyarm_core.coordinator.model import ModelCoordinator
    from polyarm_core.domains.overcooked.domain import OvercookedDomain
    from polyarm_core.llm.remembering import RememberingModel
    from polyarm_core.psd.detector import StalenessDetector

POLICIES = ("greedy", "greedy_aware", "ppo", "pbt", "fcp", "proagent")
TRAINED = ("base", "sft", "grpo")
ASKED = "model"
"""The coordinator that asks the model that the caller names."""
MODELS = (*TRAINED, ASKED)
COORDINATORS = ("search", *MODELS)
DETECTORS = ("bilinear", "closed")
TRIGGERS = ("never", "stall", "everyN", "oracle", *DETECTORS)
NETWORK = "wide_focal"
"""The staleness detector's network where a method names none: the paper's choice."""
MAX_CALLS = 25
"""Calls of a language model in an episode at most: one every four frames."""

EXPECTED = (
    *POLICIES,
    "COORDINATOR+TRIGGER[+repair]",
    f"COORDINATOR one of {', '.join(COORDINATORS)}, a model with [/free][*N]",
    f"TRIGGER one of {', '.join(TRIGGERS)}",
)


@dataclass(frozen=True)
class AskedModel:
    """A language model of the caller's, for plans (``model+TRIGGER``) and skills (``proagent``).

    Attributes:
        name: ``BACKEND:NAME`` as everywhere, e.g. ``openai:Qwen/Qwen2.5-7B-Instruct``; for ``transformers`` also the
            folder of an adapter.
        url: of its server.
        variant: of the prompt: ``base`` for a model that has never seen this, ``sft`` or ``compact`` for one that was
            tuned on it.
        timeout: s that one text may take.

    Raises:
        UnknownName: no such variant.
    """

    name: str
    url: str = ""
    variant: str = "base"
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise UnknownName("prompt variant", self.variant, VARIANTS)


@dataclass(frozen=True)
class Method:
    """A method of the benchmark.

    Attributes:
        name: as it was written.
        policy: one of ``POLICIES`` for a team without chains, else empty.
        coordinator: one of ``COORDINATORS``.
        decoding: of a model, ``constrained`` or ``free``.
        samples: of a model: plans of which the first is taken that succeeds in the imagination; 1 = taken at its word.
        trigger: one of ``TRIGGERS``, ``every`` for a fixed interval.
        interval: frames between plans where the trigger is ``every``.
        network: of a learned detector.
        repair: whether local repair is tried before the coordinator.
    """

    name: str
    policy: str = ""
    coordinator: str = "search"
    decoding: str = "constrained"
    samples: int = 1
    trigger: str = "never"
    interval: int = 8
    network: str = NETWORK
    repair: bool = False

    @property
    def uses_model(self) -> bool:
        """Whether a language model is asked."""
        return self.policy == "proagent" or (not self.policy and self.coordinator in MODELS)

    @property
    def max_calls(self) -> int | None:
        """Bound of the coordinator's calls in an episode."""
        return MAX_CALLS if self.uses_model else None

    @property
    def replan_policy(self) -> ReplanPolicy:
        """The episode runner's word for the trigger."""
        if self.trigger == "every":
            return "interval"
        return "never" if self.trigger == "never" else "stall" if self.trigger == "stall" else "detector"


def parse_method(text: str) -> Method:
    """The method of a name.

    Raises:
        UnknownName: no such method.
    """
    if text in POLICIES:
        return Method(text, policy=text)
    parts = text.split("+")
    if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] != "repair"):
        raise UnknownName("method", text, EXPECTED)
    asked, _, samples = parts[0].partition("*")
    coordinator, _, decoding = asked.partition("/")
    trigger, _, network = parts[1].partition("/")
    interval = re.fullmatch(r"every([1-9]\d*)", trigger)
    known = coordinator in COORDINATORS and (interval or trigger in TRIGGERS[:2] + TRIGGERS[3:])
    if not known or (decoding and (coordinator == "search" or decoding not in ("constrained", "free"))):
        raise UnknownName("method", text, EXPECTED)
    if "*" in parts[0] and (coordinator == "search" or not re.fullmatch(r"[2-9]|[1-9]\d+", samples)):
        raise UnknownName("method", text, EXPECTED)
    if network and trigger not in DETECTORS:
        raise UnknownName("method", text, EXPECTED)
    return Method(
        text,
        coordinator=coordinator,
        decoding=decoding or "constrained",
        samples=int(samples or 1),
        trigger="every" if interval else trigger,
        interval=int(interval[1]) if interval else 8,
        network=network or NETWORK,
        repair=len(parts) == 3,
    )


def models_folder() -> Path:
    """The folder ``models`` with trained weights: of the checkout, else of the installation."""
    from polyarm_core.scenario import config_directory

    return config_directory().parent / "models"


def open_policy(method: Method, domain: OvercookedDomain, asked: AskedModel | None = None) -> Policy:
    """The team of a method without chains.

    Args:
        method: which.
        domain: the kitchen.
        asked: for ``proagent``; the packaged model by default.

    Raises:
        InvalidValue: no network was trained for this layout.
        ModelError, MissingExtra: the language model is not there.
    """
    from polyarm_core.baselines.greedy import CollisionAwareGreedy, Greedy
    from polyarm_core.baselines.network import load_team

    if method.policy == "greedy":
        return Greedy(domain.layout)
    if method.policy == "greedy_aware":
        return CollisionAwareGreedy(domain.layout)
    if method.policy == "proagent":
        from polyarm_core.baselines.proagent import ProAgent

        return ProAgent(domain, open_language_model("base") if asked is None else _asked(asked))
    return load_team(method.policy, domain.layout.name, models_folder() / "overcooked_rl")


def open_coordinator(method: Method, domain: OvercookedDomain, asked: AskedModel | None = None) -> Coordinator[Any]:
    """A fresh coordinator: what it remembers of one trial is of no use in the next.

    Args:
        method: names it.
        domain: in which it plans.
        asked: the model of ``model+TRIGGER``.

    Raises:
        InvalidValue: no model was named, or several plans are wanted of one that cannot draw.
        ModelError, MissingExtra: the language model is not there.
    """
    from polyarm_core.coordinator.search import SearchCoordinator

    if method.coordinator == "search":
        return SearchCoordinator(domain)
    return open_model_coordinator(method, domain, asked)


def open_model_coordinator(
    method: Method, domain: OvercookedDomain, asked: AskedModel | None = None, **options: Any
) -> ModelCoordinator[Any]:
    """A coordinator that asks a language model, with the prompt that the model was tuned on.

    Args:
        method: names the model and how it is decoded.
        domain: in which it plans.
        asked: the model of ``model+TRIGGER``.
        options: further ones of the coordinator.

    Raises:
        InvalidValue: no model was named, or several plans are wanted of one that cannot draw.
        ModelError, MissingExtra: the language model is not there.
    """
    from polyarm_core.coordinator.model import ModelCoordinator, Sampler

    model, variant = _model_of(method, asked)
    if method.samples > 1 and not isinstance(model.model, Sampler):
        raise InvalidValue("method", method.name, f"one plan a call: from {model.name} no text can be drawn")
    return ModelCoordinator(
        domain,
        model,
        variant=variant,
        decoding="free" if method.decoding == "free" else "constrained",
        samples=method.samples,
        name=method.coordinator,
        **options,
    )


def _model_of(method: Method, asked: AskedModel | None) -> tuple[RememberingModel, Variant]:
    from polyarm_core.training.lora import trained_variant

    if method.coordinator == ASKED:
        if asked is None:
            raise InvalidValue("model", asked, f"BACKEND:NAME of the language model that {method.name} asks")
        return _asked(asked), cast(Variant, asked.variant)
    model = open_language_model(method.coordinator)
    if method.coordinator == "base":
        return model, "base"
    return model, trained_variant(adapter_folder(method.coordinator))


def open_detector(method: Method, domain: OvercookedDomain) -> StalenessDetector | None:
    """A fresh staleness detector, None where the method has none.

    Raises:
        InvalidValue: the network was not trained.
    """
    from polyarm_core.psd.detector import LearnedDetector, OracleDetector

    if method.trigger == "oracle":
        return OracleDetector(domain.simulation)
    if method.trigger not in DETECTORS:
        return None
    path = models_folder() / "psd_overcooked" / f"{method.trigger}_{method.network}.npz"
    if not path.is_file():
        trained = sorted(file.stem for file in path.parent.glob("*.npz"))
        raise InvalidValue("network", path.stem, f"one that was trained: {', '.join(trained) or '(none)'}")
    return LearnedDetector.load(domain.simulation, path)


def open_language_model(which: str) -> RememberingModel:
    """The packaged model, as it is (``base``) or with the adapter of a training; one copy per process.

    It writes for several threads at once, and answers from memory what it was asked before: without events all trials
    of a method ask the same, and a model that plans nothing is asked again in the same state.

    Raises:
        ModelError, MissingExtra: the weights, or what reads them, are not there.
    """
    with _OPENING:
        return _opened(which)


def _asked(asked: AskedModel) -> RememberingModel:
    with _OPENING:
        return _opened_asked(asked)


_OPENING = Lock()


@cache
def _opened(which: str) -> RememberingModel:
    from polyarm_core.training.lora import model_folder

    return _writing("smollm2-135m-instruct" if which == "base" else model_folder(str(adapter_folder(which))))


@cache
def _opened_asked(asked: AskedModel) -> RememberingModel:
    from polyarm_core.llm.interface import Prompt
    from polyarm_core.llm.registry import open_model
    from polyarm_core.llm.remembering import RememberingModel
    from polyarm_core.scenario import ModelSpec, parse_model
    from polyarm_core.training.lora import model_folder

    spec = parse_model(asked.name, ModelSpec(backend="openai", timeout=asked.timeout))
    if spec.backend == "heuristic":
        raise InvalidValue("model", asked.name, "a model that can write a text")
    if spec.backend == "transformers" and not asked.url:
        return _writing(model_folder(spec.name))
    model = open_model(spec, url=asked.url or None)
    model.generate(Prompt("", "Answer with yes."), max_tokens=1)  # whoever is not there must not lose every trial
    return RememberingModel(model, asked.name)


def _writing(weights: str) -> RememberingModel:
    from polyarm_core.llm.batched import BatchedModel
    from polyarm_core.llm.remembering import RememberingModel
    from polyarm_core.llm.transformers_backend import TransformersModel

    model = BatchedModel(TransformersModel(weights, threads=1, dtype="bfloat16", packed=True))
    return RememberingModel(model, model.name)


def adapter_folder(which: str) -> Path:
    """Adapter and card of a tuned coordinator.

    Raises:
        InvalidValue: it was not trained.
    """
    folder = models_folder() / "coordinator_overcooked" / which
    if not (folder / "adapter_config.json").is_file():
        raise InvalidValue("coordinator", which, f"base, or one with an adapter in {folder.parent.name}/")
    return folder
