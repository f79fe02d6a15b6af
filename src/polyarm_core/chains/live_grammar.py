"""A grammar for constrained decoding, made from the live state: its sentences are plans that pass validation.

The grammar is one for llguidance (Lark with *parametric* rules, which it has since 1.0): a rule may carry 64 bits of
memory, change them (``set_bit``, ``bit_or``, ``incr``, ``decr``) and ask them (``%if``). Actions, entities, attributes,
comparisons and values are simply listed. The memory is for ``Wait_agents``: a step number must exist in a chain that
may not be written yet, and the waits of several chains must not wait for each other in a circle.

*Two agents* (:func:`_pair`): each may wait for the other. What the first chain asks of the second is kept as up to
``SLOTS`` pairs (p, s): "the first agent is held at its step p until the second has done step s", with rising p and s.
While the second chain is written, every s counts down; the chain cannot end before all are met (so every step that is
named exists), and it can wait for step t of the first agent only if no open pair holds that agent before t (so no
circle can arise).

*One, or more than two* (:func:`_ordered`): blocks may come in any order, and a wait names only agents whose blocks are
already there. So its step exists, and there are no circles. With more agents than the memory holds (more than 10 for
16 steps) there are no ``Wait_agents`` at all.

What the grammar leaves out of the valid plans: other spellings than the printer's (but a float has exactly three
decimals); with two agents, more than ``SLOTS`` rising waits of the first for the second, and
the few circles that would resolve because of ``|`` or because the first agent waits for a ``start`` only; with more
agents, waits for an agent of a later block. What it lets through that is not valid: nothing known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from polyarm_core.chains.printer import format_step, format_value
from polyarm_core.chains.terms import Action, Comparison
from polyarm_core.chains.validation import MAX_STEPS, comparisons
from polyarm_core.domains.interface import Attribute, Domain, State
from polyarm_core.errors import InvalidValue

DECIMALS = 3  # of a float
SLOTS = 4  # pairs (p, s) that the grammar for two agents remembers
MEMORY = 64  # bits of a parametric rule

Field = tuple[int, int]  # first bit, bit after the last


def live_grammar(domain: Domain[State], state: State, max_steps: int = MAX_STEPS) -> str:
    """The grammar of the plans that can be made now.

    Read a sentence with ``parse_plan(text, domain.agents)``: with three agents or more the blocks may come in any
    order.

    Args:
        domain: of the scene.
        state: in which the plan is made; the grammar is good for this state only.
        max_steps: longest chain.

    Returns:
        Text of a Lark grammar for llguidance, rule ``start``.

    Raises:
        InvalidValue: ``max_steps`` below 1 or above 31, or an argument that cannot be written.
    """
    if not 1 <= max_steps <= 31:
        raise InvalidValue("max_steps", max_steps, "1..31")
    acting = [bool(actions) for actions in (_actions(domain, state, agent) for agent in domain.agents)]
    conditions = _conditions(domain, state)
    terminals = [
        f"ACTION_{i}: /{_any(_actions(domain, state, agent))}/" for i, agent in enumerate(domain.agents) if acting[i]
    ]
    if conditions:
        terminals.append(f"CONDITION: /{_any(conditions)}/")
    write = _pair if len(domain.agents) == 2 and (all(acting) or conditions) else _ordered
    return "\n".join([*write(domain.agents, acting, bool(conditions), max_steps), *terminals]) + "\n"


# -- what can stand in a chain ----------------------------------------------------------------------------------------


def _actions(domain: Domain[State], state: State, agent: str) -> list[str]:
    """Patterns of the actions that the agent may use in a plan made now."""
    actions = [
        Action(template.name, arguments)
        for template in domain.vocabulary
        for arguments in domain.arguments(state, agent, template)
    ]
    return [_quoted(format_step(action)) for action in actions if domain.impossible(state, agent, action) is None]


def _conditions(domain: Domain[State], state: State) -> list[str]:
    """Patterns of all ``Wait_entity``: a kind's entities share what may follow."""
    names: dict[str, list[str]] = {}
    for entity in domain.entities(state):
        names.setdefault(entity.kind, []).append(_quoted(entity.name))
    patterns = []
    for kind, entities in names.items():
        tests = [
            f"{_quoted(attribute.name)}, {_any(operators)}, {values}"
            for attribute in domain.attributes[kind]
            for operators, values in _tests(attribute)
        ]
        if tests:
            patterns.append(rf"Wait_entity\({_any(entities)}, {_any(tests)}\)")
    return patterns


def _tests(attribute: Attribute) -> list[tuple[list[Comparison], str]]:
    """Comparisons of an attribute, with the pattern of the values that may follow them; only what can ever hold."""
    operators = list(comparisons(attribute))
    if attribute.kind == "bool":
        return [(operators, "(true|false)")]
    if attribute.kind == "choice":
        return [(operators, _any(_quoted(format_value(choice)) for choice in attribute.choices))]
    scale = 1 if attribute.kind == "int" else 10**DECIMALS
    decimals = 0 if attribute.kind == "int" else DECIMALS
    low, high = math.ceil(Fraction(attribute.low) * scale), math.floor(Fraction(attribute.high) * scale)
    groups: tuple[tuple[list[Comparison], int, int], ...] = (
        (["==", "<=", ">="], low, high),
        (["!="], low, high if low < high else low - 1),
        (["<"], low + 1, high),
        ([">"], low, high - 1),
    )
    return [(group, number_pattern(a, b, decimals)) for group, a, b in groups if a <= b]


def number_pattern(low: int, high: int, decimals: int = 0) -> str:
    """Regular expression of the numbers low..high, in units of the last of so many decimals, without leading zeros.

    ``number_pattern(5, 12)`` matches 5 to 12, ``number_pattern(-500, 1250, 3)`` matches -0.500 to 1.250.

    Raises:
        InvalidValue: low above high.
    """
    if low > high:
        raise InvalidValue("low", low, f"at most {high}")
    parts = []
    if low < 0:
        parts.append(f"-{number_pattern(max(1, -high), -low, decimals)}")
    at = max(low, 0)
    while at <= high:  # one number of digits after the other
        digits = max(len(str(at)), decimals + 1)
        last = min(high, 10**digits - 1)
        parts.append(_digits(str(at).zfill(digits), str(last).zfill(digits), decimals))
        at = last + 1
    return _any(parts)


def _digits(low: str, high: str, decimals: int) -> str:
    """Pattern of the strings of digits between two of the same length, with a point before the last decimals."""
    if not low:
        return ""
    point = r"\." if decimals and len(low) == decimals else ""
    rest = len(low) - 1
    if low[0] == high[0]:
        return point + low[0] + _digits(low[1:], high[1:], decimals)
    zeros, nines = "0" * rest, "9" * rest
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:] != zeros:
        parts.append(low[0] + _digits(low[1:], nines, decimals))
        first += 1
    if high[1:] != nines:
        last -= 1
    if first <= last:
        parts.append((f"[{first}-{last}]" if first < last else str(first)) + _free_digits(rest, decimals))
    if high[1:] != nines:
        parts.append(high[0] + _digits(zeros, high[1:], decimals))
    return point + _any(parts)


def _free_digits(count: int, decimals: int) -> str:
    if decimals and count >= decimals:
        before = f"[0-9]{{{count - decimals}}}" if count > decimals else ""
        return rf"{before}\.[0-9]{{{decimals}}}"
    return f"[0-9]{{{count}}}" if count > 1 else "[0-9]" * count


def _quoted(text: str) -> str:
    r"""Regular expression of a text as it is; ``/`` ends one in Lark, so it is escaped as well."""
    return "".join(f"\\{character}" if character in r"\.^$*+?()[]{}|/-&~#" else character for character in text)


def _any(patterns: Iterable[str]) -> str:
    listed = list(patterns)
    return listed[0] if len(listed) == 1 else f"({'|'.join(listed)})"


# -- rules with a memory ----------------------------------------------------------------------------------------------


def _and(*conditions: str) -> str:
    *rest, text = conditions
    for condition in reversed(rest):
        text = f"and({condition}, {text})"
    return text


def _or(*conditions: str) -> str:
    *rest, text = conditions
    for condition in reversed(rest):
        text = f"or({condition}, {text})"
    return text


def _bits(field: Field) -> str:
    return f"[{field[0]}:{field[1]}]"


def _rule(name: str, *alternatives: tuple[str, str]) -> str:
    """A parametric rule from pairs of expansion and condition (empty: always)."""
    lines = [f"{body} %if {condition}" if condition else body for body, condition in alternatives]
    return f"{name}::_ : " + "\n  | ".join(lines)


# llguidance 1.9 has two traps. It drops the operation of a rule that is nothing but another rule, unless there is a
# condition. And whether a text may end is asked with the memory as it is after the last terminal, so what the end
# depends on must be up to date there: all counting is done at the beginning of a step.


def _cleared(name: str, then: str, bit: int) -> str:
    """Go on with a bit cleared."""
    return _rule(name, (f"{then}::clear_bit({bit})", f"bit_set({bit})"), (f"{then}::_", f"bit_clear({bit})"))


def _counted(name: str, then: str, field: Field, limit: int) -> str:
    """Go on with one more in a field; it has less than the limit."""
    return _rule(name, (f"{then}::incr({_bits(field)})", f"lt({_bits(field)}, {limit})"))


def _counted_down(name: str, then: str, field: Field) -> str:
    """Go on with one less in a field, but not less than 0."""
    some, none = f"gt({_bits(field)}, 0)", f"is_zeros({_bits(field)})"
    return _rule(name, (f"{then}::decr({_bits(field)})", some), (f"{then}::_", none))


def _emptied(name: str, then: str, field: Field) -> str:
    """Go on with 0 in a field."""
    rest = 2**MEMORY - 1 - (2 ** field[1] - 2 ** field[0])
    some, none = f"gt({_bits(field)}, 0)", f"is_zeros({_bits(field)})"
    return _rule(name, (f"{then}::bit_and({rest})", some), (f"{then}::_", none))


def _fields(width: int, count: int, first: int = 0) -> list[Field]:
    return [(first + width * i, first + width * (i + 1)) for i in range(count)]


def _tag(agent: str) -> str:
    return f'"\\"{agent}\\":"'


def _pair(agents: Sequence[str], acting: Sequence[bool], conditions: bool, max_steps: int) -> list[str]:
    """Rules for two agents; see the head of the module.

    Memory: one bit "second atom of a wait", the steps written of either chain, and the pairs (p, s); 0 = not used.
    """
    one, two = agents
    width = (max_steps + 1).bit_length()
    second_atom = 0
    first_steps, second_steps = _fields(width, 2, 1)
    held = _fields(width, SLOTS, 1 + 2 * width)  # p of each pair
    until = _fields(width, SLOTS, 1 + (2 + SLOTS) * width)  # s + 1 of each pair, less the steps of the second chain
    numbers = range(1, max_steps + 1)
    nothing_asked = f"is_zeros({_bits(until[0])})"
    all_exist = _and(*(f"le({_bits(field)}, 1)" for field in until))

    # First chain. ``a_number`` notes s, ``a_held`` the p that belongs to it.
    number: list[tuple[str, str]] = []
    for s in numbers:
        asked = _or(*(f"gt({_bits(field)}, {s})" for field in until))
        number.append((f'"{s}" a_close::_', asked))  # an older pair asks for as much
        for k, field in enumerate(until):
            free = [f"is_zeros({_bits(field)})"]
            if k:
                free += [f"gt({_bits(until[k - 1])}, 0)", f"le({_bits(until[k - 1])}, {s})"]
            number.append((f'"{s}" a_held::bit_or({s + 1 << field[0]})', _and(*free)))
    note = [
        (
            f'")" a_more::bit_or({p << held[k][0]})',
            _and(f"eq({_bits(first_steps)}, {p})", f"gt({_bits(until[k])}, 0)", f"is_zeros({_bits(held[k])})"),
        )
        for p in numbers
        for k in range(SLOTS)
    ]
    ask = [("ASK_FIRST a_number::_", "")]
    act_a, act_b = ([(f"ACTION_{i} {name}_next::_", "")] if acting[i] else [] for i, name in enumerate("ab"))
    test_a, test_b = ([(f"CONDITION {name}_more::_", "")] if conditions else [] for name in "ab")
    join = f"bit_clear({second_atom})"
    rules = [
        f"start: {_tag(one)} a_open::0",
        _rule("a_open", ('" " a_begin::_', ""), ("b_open::_", "")),
        _cleared("a_begin", "a_count", second_atom),
        _counted("a_count", "a_step", first_steps, max_steps),
        _rule("a_step", *act_a, *test_a, *ask),
        _rule("a_atom", *test_a, *ask),
        _rule("a_number", *number),
        _rule("a_held", *note),
        _rule("a_close", ('")" a_more::_', "")),
        _rule("a_more", ("a_next::_", ""), (f"CONNECTIVE a_atom::set_bit({second_atom})", join)),
        _rule("a_next", ('", " a_begin::_', f"lt({_bits(first_steps)}, {max_steps})"), ("b_open::_", "")),
    ]

    # Second chain. ``b_down_k`` counts s of pair k down.
    def reachable(t: int, milestone: str) -> str:
        """The first agent gets to this milestone whatever the second does from here on."""
        beyond = "ge" if milestone == "start" else "gt"
        open_pairs = (f"or(is_zeros({_bits(until[k])}), {beyond}({_bits(held[k])}, {t}))" for k in range(SLOTS))
        return _and(f"ge({_bits(first_steps)}, {t})", *open_pairs)

    waits = [(f"ASK_{m.upper()} b_{m}::_", reachable(1, m)) for m in ("start", "done")]
    rules += [
        _rule("b_open", (f'"\\n" {_tag(two)} b_first::_', "")),
        _rule("b_first", ('" " b_begin::_', ""), ('""', nothing_asked)),
        _cleared("b_begin", "b_down_0", second_atom),
        *(_counted_down(f"b_down_{k}", f"b_down_{k + 1}", field) for k, field in enumerate(until)),
        _counted(f"b_down_{SLOTS}", "b_step", second_steps, max_steps),
        _rule("b_step", *act_b, *test_b, *waits),
        _rule("b_atom", *test_b, *waits),
        *(_rule(f"b_{m}", *((f'"{t})" b_more::_', reachable(t, m)) for t in numbers)) for m in ("start", "done")),
        _rule("b_more", ("b_next::_", ""), (f"CONNECTIVE b_atom::set_bit({second_atom})", join)),
        _rule("b_next", ('", " b_begin::_', f"lt({_bits(second_steps)}, {max_steps})"), ('""', all_exist)),
        f'ASK_FIRST: "Wait_agents({two}, " ("start" | "done") ", "',
        f'ASK_START: "Wait_agents({one}, start, "',
        f'ASK_DONE: "Wait_agents({one}, done, "',
        'CONNECTIVE: " & " | " | "',
    ]
    return rules


def _ordered(agents: Sequence[str], acting: Sequence[bool], conditions: bool, max_steps: int) -> list[str]:
    """Rules for any number of agents; waits name agents of earlier blocks only.

    Memory: one bit "second atom of a wait", one bit per agent "its block has begun", the steps of each chain.
    """
    width = max_steps.bit_length()
    count = len(agents)
    waits = 1 + count * (1 + width) <= MEMORY
    steps = _fields(width, count, 1 + count)
    if not waits:  # only the chain that is being written is counted, in a field for all
        if 1 + count + width > MEMORY:
            raise InvalidValue("agents", count, f"at most {MEMORY - 1 - width}")
        steps = [(1 + count, 1 + count + width)] * count
    numbers = range(1, max_steps + 1)
    rules = [
        "start: blocks::0",
        _rule(
            "blocks",
            *((f"{_tag(agent)} c{i}_open::set_bit({1 + i})", f"bit_clear({1 + i})") for i, agent in enumerate(agents)),
        ),
        _rule("next", ('"\\n" blocks::_', f"not(is_ones([1:{1 + count}]))"), ('""', f"is_ones([1:{1 + count}])")),
    ]
    for i in range(count):
        others = [j for j in range(count) if j != i and waits]
        asks = [(f"ASK_{j} c{i}_of{j}::_", f"ge({_bits(steps[j])}, 1)") for j in others]
        act = [(f"ACTION_{i} c{i}_next::_", "")] if acting[i] else []
        test = [(f"CONDITION c{i}_more::_", "")] if conditions else []
        begin = (
            [(f'" " c{i}_first::_', "" if act or test else _or(*(condition for _, condition in asks)))]
            if act or test or asks
            else []
        )
        again = f"lt({_bits(steps[i])}, {max_steps})"
        rules += [_rule(f"c{i}_open", *begin, ("next::_", ""))]
        if not begin:
            continue
        rules += [
            _emptied(f"c{i}_first", f"c{i}_begin", steps[i]),
            _cleared(f"c{i}_begin", f"c{i}_count", 0),
            _counted(f"c{i}_count", f"c{i}_step", steps[i], max_steps),
            _rule(f"c{i}_step", *act, *test, *asks),
            *(
                _rule(f"c{i}_of{j}", *((f'"{t})" c{i}_more::_', f"ge({_bits(steps[j])}, {t})") for t in numbers))
                for j in others
            ),
            _rule(f"c{i}_next", (f'", " c{i}_begin::_', again), ("next::_", "")),
        ]
        if test or asks:
            rules += [
                _rule(f"c{i}_atom", *test, *asks),
                _rule(f"c{i}_more", (f"c{i}_next::_", ""), (f"CONNECTIVE c{i}_atom::set_bit(0)", "bit_clear(0)")),
            ]
    if waits and count > 1:
        rules += [f'ASK_{j}: "Wait_agents({agent}, " ("start" | "done") ", "' for j, agent in enumerate(agents)]
    rules.append('CONNECTIVE: " & " | " | "')
    return rules
