"""Model card of the arms' staleness detectors, written from their figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyarm_core.psd.card import percent, table, wrapped

INTRODUCTION = """# Plan staleness detectors for the arms

Networks that say, slot by slot, whether the rest of a joint plan can still succeed (SyncPlan 4.3, A.6). Each `NAME.npz`
holds weights in half precision, `NAME.json` beside it the threshold, the settings and all figures below and more.
Inference needs numpy only: `LearnedDetector.load(ArmsDomain("cabinet"), Path("models/psd_arms/closed_wide_focal.npz"))`
of `polyarm_core.psd.detector`; in the graph the node `psd` with the parameter `detector` closed or bilinear.

* **bilinear** is the paper's network: incidence by what a step names, and no row for what no step names.
* **closed** has the same form, but the incidence is closed over the scenario's rules (a step depends on its arm and its
  group, on where its object is and who holds it, on what stands on a placement, on the conditions that it needs and the
  arms that can hold them), and a row without a mark keeps a learned floor.

One network serves every task: no weight belongs to an entity or a scenario. N = 6 arms, M = 32 entities, L = 16 steps,
F = 16 features, d = 32, k_ref = 3 slots; the MLP has hidden layers of 512 and 384."""


def arms_card(folder: Path) -> str:
    """Text of the card for all networks whose figures are in a folder."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    parts = [INTRODUCTION]
    if records:
        parts += [_data(next(iter(records.values()))), _slots(records), _blind_spot(records), _kinds(records)]
        parts += [_thresholds(records), _scenarios(records), _held_out(records)]
    return "\n\n".join(parts) + "\n"


def _data(record: Mapping[str, Any]) -> str:
    settings, data = record["settings"], record["data"]
    options = " ".join(
        f"--{key.replace('_', '-')} {','.join(value) if isinstance(value, list) else value}"
        for key, value in settings.items()
    )
    rows = [
        [where, kind, *(f"{found[key]:,}" for key in ("count", "stale", "unmarked", "unmarked_stale"))]
        for where, events in (("episode", data["events"]), ("tried within a slot", data["events_within"]))
        for kind, found in events.items()
        if found["count"]
    ]
    text = (
        f"{data['episodes']:,} controlled episodes ({settings['episodes']:,} of each scenario: the real follower, "
        "planner, repair and disturbances on a plant without physics), none to five events each, planned or hybrid, "
        "with plans of the search coordinator of which some are not the fastest. Half of the episodes replace a stale "
        "plan at once, the others late or only when the executor finds out, some also for no reason. "
        f"{data['slots']:,} slots in which there was a plan, in {data['stale']:,} of them one that could not succeed. "
        "Slots in which nothing of an event can be seen any more are left out. "
        f"The detector also looks while a slot is open, so {data['within']:,} events were tried within slots whose "
        f"plan was good, {data['within_stale']:,} of which broke it. The label is the verdict of the roll-out oracle, "
        "which alone knows how long stops and blocks last. Split 7:1:2 by episode into training, validation (for the "
        "threshold with the best mean of F1 in slots as they open and within them) and test."
    )
    header = ["where", "kind", "events", "that broke the plan", "whose entities no step names"]
    header += ["of these, that broke it"]
    parts = ["## Data", f"`python -m polyarm_core.psd.arms_training {options}`"]
    return "\n\n".join([*parts, wrapped(text), table(header, rows)])


def _slots(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        test = record["test"]
        slots, within, delay = test["slots"], test["within"], test["delay"]
        row = [name, str(record["threshold"]), f"{record['parameters']:,}", f"{slots['f1']:.3f}"]
        row += [percent(slots[key]) for key in ("precision", "recall", "false_alarms")]
        row += [percent(test["false_alarms"]), percent(test["oracle"]["recall"]), percent(delay["noticed"])]
        row += ["" if delay["frames"] is None else f"{delay['frames']:.2f}", f"{within['f1']:.3f}"]
        rows.append([*row, percent(within["recall"]), percent(within["false_alarms"])])
    header = ["network", "threshold", "parameters", "F1", "precision", "recall", "false alarms per good slot"]
    header += ["the same where nothing has happened", "recall in the slot of an event", "events noticed in the end"]
    header += ["their mean delay in slots", "within a slot: F1", "within a slot: recall"]
    header += ["within a slot: alarms at events that leave the plan intact"]
    return "## Test episodes\n\nEvery slot with a plan. 95 % Wilson intervals and counts in brackets.\n\n" + table(
        header, rows
    )


def _blind_spot(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        test, within = record["test"], record["test"]["within"]
        row = [name, percent(test["oracle"]["blind_spot"]), percent(test["slots"]["false_alarms"])]
        rows.append([*row, percent(within["oracle"]["blind_spot"]), percent(within["false_alarms"])])
    header = ["network", "in the slot that opens after it: recall", "false alarms per good slot"]
    header += ["within a slot: recall", "alarms at events that leave the plan intact"]
    return (
        "## Events none of whose entities a remaining step names\n\n"
        "Recall where the event broke the plan, with the false alarms beside it.\n\n" + table(header, rows)
    )


def _kinds(records: Mapping[str, Any]) -> str:
    kinds = list(next(iter(records.values()))["test"]["oracle"]["recall_by_event"])
    rows = [
        [name, where, *(percent(found["oracle"]["recall_by_event"][kind]) for kind in kinds)]
        for name, record in records.items()
        for where, found in (("as it opens", record["test"]), ("within", record["test"]["within"]))
    ]
    text = "## Recall by kind of event, in its slot, where it broke the plan\n\n"
    return text + table(["network", "slot", *kinds], rows)


def _thresholds(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        for threshold, found in record["test"]["by_threshold"].items():
            row = [name, threshold, f"{found['f1']:.3f}"]
            row += [percent(found[key], False) for key in ("recall", "false_alarms", "blind_spot")]
            rows.append([*row, *(percent(found["within"][key], False) for key in ("recall", "false_alarms"))])
    header = ["network", "threshold", "F1", "recall", "false alarms per good slot", "recall where no step names it"]
    header += ["within a slot: recall", "within a slot: alarms at events that leave the plan intact"]
    return "## Other thresholds\n\n" + table(header, rows)


def _scenarios(records: Mapping[str, Any]) -> str:
    rows = [
        [name, scenario, f"{found['f1']:.3f}"]
        + [percent(part[key]) for part in (found, found["within"]) for key in ("recall", "false_alarms")]
        for name, record in records.items()
        for scenario, found in record["test"]["by_scenario"].items()
    ]
    header = ["network", "scenario", "F1", "recall", "false alarms per good slot", "within a slot: recall"]
    header += ["within a slot: alarms at events that leave the plan intact"]
    return "## By scenario\n\n" + table(header, rows)


def _held_out(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        held_out = record.get("held_out")
        if not held_out:
            continue
        for trained, test in (("without them", held_out["test"]), ("with them", held_out["with_them"])):
            slots, within = test["slots"], test["within"]
            row = [name, trained, f"{slots['f1']:.3f}", percent(slots["recall"]), percent(slots["false_alarms"])]
            row += [percent(within["recall"]), percent(within["false_alarms"])]
            rows.append([*row, percent(within["oracle"]["blind_spot"])])
    if not rows:
        return "## Unknown scenarios\n\nNot measured."
    names = " and ".join(next(r["held_out"]["trained_without"] for r in records.values() if r.get("held_out")))
    header = ["network", "trained", "F1", "recall", "false alarms per good slot", "within a slot: recall"]
    header += ["within a slot: alarms at events that leave the plan intact", "within a slot: recall, no step names it"]
    return f"## Unknown scenarios\n\nTest episodes of {names}.\n\n" + table(header, rows)
