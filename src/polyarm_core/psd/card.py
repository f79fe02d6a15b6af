"""Model card of the trained staleness detectors, written from their figures."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TABLE_11 = {"small": 68_737, "medium": 261_377, "wide": 745_473}

INTRODUCTION = """# Plan staleness detectors for Overcooked

Networks that say, frame by frame, whether the rest of a joint plan is still good (SyncPlan 4.3, A.6). Each `NAME.npz`
holds weights in half precision, `NAME.json` beside it the threshold, the settings and all figures below and more, with
counts and intervals. Inference needs numpy only:
`polyarm_core.psd.detector.LearnedDetector.load(domain, Path("models/psd_overcooked/closed_wide_focal.npz"))`.

* **bilinear** is the paper's network: incidence by what a step names, and no row for what no step names.
* **closed** has the same form, but the incidence is closed over the rules of the kitchen (a step depends on the agent
  itself, on who stands in its way, on who has to bring what it needs), and a row without a mark keeps a learned floor.

N = 2 agents, M = 16 entities, L = 16 steps, F = 16 features, d = 32, k_ref = 3; the MLP has hidden layers of 64 and 32
(small), 256 (medium) or 512 and 384 (wide). `Attn`, which the paper does not define, has no parameters here: see
`polyarm_core/psd/network.py`. No natural sizes give the three counts of the paper's Table 11 at once: 68,737 is met by
these sizes only without `W_N` and `W_Q` (18), and then the other two are not; so ours are reported as they are."""


def model_card(folder: Path) -> str:
    """Text of the card for all networks whose figures are in a folder; empty tables where there are none."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    trained = [name for name, record in records.items() if "paper" in record.get("splits", {})]
    records = {name: records[name] for name in sorted(trained, key=_order)}
    parts = [INTRODUCTION]
    if records:
        parts += [_data(next(iter(records.values()))), _sizes(records), _paper_split(records)]
        parts += [_thresholds(records), _held_out(records), _splits(records), _blind_spot(records)]
    return "\n\n".join(parts) + "\n"


def _order(name: str) -> tuple[str, int]:
    """``bilinear`` before ``closed``, small before large."""
    detector, size, _ = name.split("_")
    return detector, list(TABLE_11).index(size)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(rate: Mapping[str, Any], counted: bool = True) -> str:
    """A share in per cent, with its interval and counts unless they are not wanted."""
    if rate["share"] is None:
        return "none"
    if not counted:
        return f"{100 * rate['share']:.1f} %"
    return (
        f"{100 * rate['share']:.1f} % ({100 * rate['low']:.1f} to {100 * rate['high']:.1f}; "
        f"{rate['hits']:,}/{rate['trials']:,})"
    )


def _data(record: Mapping[str, Any]) -> str:
    settings, data = record["settings"], record["data"]
    options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in settings.items() if key != "layouts")
    rows = [
        [event, f"{found['count']:,}", f"{found['count'] - found['stale']:,}", f"{found['unmarked']:,}"]
        for part in data.values()
        for event, found in part["events"].items()
    ]
    training, held_out = data["training"], data["held_out"]
    events = table(["event", "frames", "that leave the plan intact", "whose entities no step names"], rows)
    command = f"python -m polyarm_core.psd.training --layouts {','.join(settings['layouts'])} {options}"
    paragraphs = [
        f"Episodes on {len(settings['layouts'])} layouts, planned in turn by the search coordinator and by the teacher "
        "of the language model, whose plans are as short as possible, like those of a tuned model: a detector that "
        f"knows one kind only takes the other for a changed world. {training['episodes']:,} episodes "
        f"with O1, O2 and O3 once each: {training['clean']:,} clean frames (at most five for each event), "
        f"{training['constructed']:,} constructed changes of the state; split 8:2 by episode, and one of the 8 selects "
        f"the threshold. {held_out['episodes']:,} episodes with O4 and O5 once each, only for tests: "
        f"{held_out['clean']:,} clean frames. After an event the episode goes on with a repaired or a new plan, or "
        "with the old one where that is intact. Settings were chosen on data of another seed. Episodes draw from "
        "`default_rng([seed, layout, episode])`, the benchmark's trials do not.",
        events,
        "Labels. `event`, the paper's: the frame of an event is positive, whether it breaks the plan or not. `oracle`: "
        "positive where the rest of the plan, rolled out, can no longer succeed. They disagree on every event that "
        "leaves the plan intact: displacements (O3), since agents find their way from anywhere, and blocked tiles that "
        "nobody needs (O4). The networks are trained on `event`, the frames after an event included while it shows in "
        "`D`; both labels are measured.",
        "Overlap of training and test events. Paper's split: the three types are the same, as in the paper; the "
        "episodes are not. O4 and O5 are in no training sample. The constructed changes know no event: an entry of the "
        "state becomes what it is in another frame (place or hands of an agent, a pot, a counter), or features of one "
        "entity are redrawn. Such a change can look like a part of a held-out event, e.g. a pot with one onion more "
        "(O5) or a tile out of use (O4); `O1, O2, O3` alone below is the same network without them.",
    ]
    return "\n\n".join(["## Data", f"`{command}`", *(p if p is events else wrapped(p) for p in paragraphs)])


def wrapped(text: str) -> str:
    """A paragraph in lines of the usual length."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _sizes(records: Mapping[str, Any]) -> str:
    rows = {}
    for name, record in records.items():
        detector, size, _ = name.split("_")
        rows[detector, size] = [detector, size, f"{record['parameters']:,}", f"{TABLE_11[size]:,}"]
    return "## Parameters\n\n" + table(["detector", "size", "ours", "Table 11"], list(rows.values()))


def _paper_split(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        test = record["splits"]["paper"]["test"]
        event, oracle = test["event"], test["oracle"]
        frames = test["delay"]["frames"]
        row = [name, str(record["threshold"]), f"{event['f1']:.3f}"]
        row += [percent(event[key]) for key in ("accuracy", "precision", "recall")]
        row += [percent(oracle["recall"]), percent(test["delay"]["noticed"])]
        row += ["" if frames is None else f"{frames:.2f}", percent(test["false_alarms"])]
        novel = record["splits"]["paper"]["test_novel"]
        row += [f"{novel['event']['f1']:.3f}", percent(novel["event"]["recall"]), percent(novel["false_alarms"])]
        rows.append(row)
    header = ["network", "threshold", "F1", "accuracy", "precision", "recall", "recall, oracle's label"]
    header += ["noticed within 3 frames, oracle's label", "mean delay in frames", "false alarms per clean frame"]
    header += ["novel frames: F1", "novel frames: recall", "novel frames: false alarms"]
    return (
        "## Paper's split: trained and tested on O1, O2, O3\n\n"
        "F1 to recall by the label `event`, in the frame of the event (paper: F1 .806 to .838, recall .990 to .992). "
        "95 % Wilson intervals and counts in brackets. The kitchen is deterministic, so test episodes share frames "
        "with training episodes, above all before the first event; the last columns are without these. "
        "The threshold is the lowest of .3, .5, .7, .9 (the one with the highest recall) with an F1 of .84 on "
        "validation episodes, or the one with the best F1 where none has it.\n\n" + table(header, rows)
    )


def _thresholds(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        paper = record["splits"]["paper"]
        for threshold, test in paper["test"]["by_threshold"].items():
            held_out = paper["held_out"]["by_threshold"][threshold]
            row = [name, threshold, f"{test['f1']:.3f}"]
            row += [f"{100 * test[key]:.1f}" for key in ("recall", "recall_oracle", "noticed", "false_alarms")]
            row += [f"{100 * held_out[key]:.1f}" for key in ("recall_oracle", "noticed", "false_alarms")]
            rows.append(row)
    header = ["network", "threshold", "F1", "recall", "recall, oracle's label", "noticed within 3 frames"]
    header += ["false alarms", "O4, O5: recall, oracle's label", "O4, O5: noticed", "O4, O5: false alarms"]
    return (
        "## Other thresholds (%)\n\nA higher one saves calls of the coordinator: what it misses in the frame of the "
        "event it still notices within the three frames in which the event shows in `D`.\n\n" + table(header, rows)
    )


def _held_out(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        found = record["splits"]["paper"]["held_out"]
        row = [name]
        row += [
            percent(found[label]["recall_by_event"][event]) for label in ("oracle", "event") for event in ("O4", "O5")
        ]
        row += [percent(found["oracle"]["recall"]), percent(found["delay"]["noticed"]), percent(found["false_alarms"])]
        rows.append(row)
    header = ["network", "O4, oracle's label", "O5, oracle's label", "O4, label event", "O5, label event"]
    header += ["both, oracle's label", "noticed within 3 frames", "false alarms per clean frame"]
    return "## Recall on the held-out types O4 and O5\n\n" + table(header, rows)


def _splits(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        for split, figures in record["splits"].items():
            if len(record["splits"]) == 1:
                continue
            unseen = split.removeprefix("without_") if split.startswith("without_") else ""
            test, held_out = figures["test"], figures["held_out"]
            row = [name, figures["trained_on"]]
            for label in ("event", "oracle"):
                row.append(percent(test[label]["recall_by_event"][unseen]) if unseen else "")
            row += [percent(held_out["oracle"]["recall_by_event"][event]) for event in ("O4", "O5")]
            row += [percent(held_out["delay"]["noticed"]), percent(test["false_alarms"])]
            rows.append(row)
    header = ["network", "trained on", "the third type, label event", "the third type, oracle's label"]
    header += ["O4, oracle's label", "O5, oracle's label", "O4 and O5 noticed within 3 frames"]
    header += ["false alarms per clean frame"]
    return "## Events split by type: recall on types that training had not\n\n" + table(header, rows)


def _blind_spot(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        figures = record["splits"]["paper"]
        row = [name]
        row += [percent(figures["test"][label]["blind_spot"]) for label in ("event", "oracle")]
        row.append(percent(figures["held_out"]["event"]["blind_spot"]))
        rows.append(row)
    header = ["network", "O1 to O3, label event", "O1 to O3, oracle's label", "O4 and O5, label event"]
    return (
        "## Blind spot: recall on events none of whose entities a remaining step names\n\n"
        "`bilinear` cannot see the entity itself there; what it sees is the trace that the event leaves in the "
        "features of named tiles (how far the agents are from them, and whether they can use them).\n\n"
        + table(header, rows)
    )
