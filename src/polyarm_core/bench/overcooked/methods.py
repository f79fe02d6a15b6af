"""Methods by name: what is compared in the kitchen.

A method that plans is written ``COORDINATOR+TRIGGER`` or ``COORDINATOR+TRIGGER+repair``, e.g. ``search+closed+repair``:
who makes the plans, what asks for a new one, and whether a local repair is tried first. A model may be followed by how
it is decoded, ``sft/free+stall``; a learned detector by the network, ``search+closed/small_bce``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

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
MODELS = ("base", "sft", "grpo")
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


def open_policy(method: Method, domain: OvercookedDomain) -> Policy:
    """The team of a method without chains.

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

        return ProAgent(domain, open_language_model("base"))
    return load_team(method.policy, domain.layout.name, models_folder() / "overcooked_rl")


def open_coordinator(method: Method, domain: OvercookedDomain) -> Coordinator[Any]:
    """A fresh coordinator: what it remembers of one trial is of no use in the next.

    Raises:
        ModelError, MissingExtra: the language model is not there.
    """
    from polyarm_core.coordinator.search import SearchCoordinator

    if method.coordinator == "search":
        return SearchCoordinator(domain)
    return open_model_coordinator(method, domain)


def open_model_coordinator(method: Method, domain: OvercookedDomain, **options: Any) -> ModelCoordinator[Any]:
    """A coordinator that asks a language model, with the prompt that the model was tuned on.

    Args:
        method: names the model and how it is decoded.
        domain: in which it plans.
        options: further ones of the coordinator.

    Raises:
        ModelError, MissingExtra: the language model is not there.
    """
    from polyarm_core.coordinator.model import ModelCoordinator
    from polyarm_core.training.lora import trained_variant

    return ModelCoordinator(
        domain,
        open_language_model(method.coordinator),
        variant="base" if method.coordinator == "base" else trained_variant(adapter_folder(method.coordinator)),
        decoding="free" if method.decoding == "free" else "constrained",
        samples=method.samples,
        name=method.coordinator,
        **options,
    )


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


_OPENING = Lock()


@cache
def _opened(which: str) -> RememberingModel:
    from polyarm_core.llm.batched import BatchedModel
    from polyarm_core.llm.remembering import RememberingModel
    from polyarm_core.llm.transformers_backend import TransformersModel
    from polyarm_core.training.lora import model_folder

    name = "smollm2-135m-instruct" if which == "base" else model_folder(str(adapter_folder(which)))
    return RememberingModel(BatchedModel(TransformersModel(name, threads=1, dtype="bfloat16", packed=True)))


def adapter_folder(which: str) -> Path:
    """Adapter and card of a tuned coordinator.

    Raises:
        InvalidValue: it was not trained.
    """
    folder = models_folder() / "coordinator_overcooked" / which
    if not (folder / "adapter_config.json").is_file():
        raise InvalidValue("coordinator", which, f"base, or one with an adapter in {folder.parent.name}/")
    return folder
