"""A film of an episode: the kitchen, and beside it each agent's remaining chain, waits, events and corrections."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from polyarm_core.bench.overcooked.methods import parse_method
from polyarm_core.bench.overcooked.trial import open_domain, run_chains, schedule_of
from polyarm_core.chains.terms import Plan, Wait
from polyarm_core.errors import InvalidValue

if TYPE_CHECKING:
    from PIL.Image import Image

    from polyarm_core.coordinator.episode import Episode

TILE = 60  # pixels
PANEL = 620
LINE = 19
SHOWN = 7  # steps of each chain
NEWS = 5  # lines
WIDEST = 155  # characters of one; the narrowest picture has room for them
LINGER = 6  # frames for which an event or a correction stays on the screen
PER_SECOND = 5
COLOURS = {
    "text": "#222222",
    "wait": "#b35c00",
    "done": "#1b7f3b",
    "event": "#b00020",
    "plan": "#0b4f9e",
    "grey": "#777777",
}


def write_film(method: str, layout: str, setting: str, seed: int, path: Path) -> int:
    """Play a trial and write it as a GIF.

    Args:
        method: one with chains.
        layout, setting, seed: of the trial.
        path: of the file, ``.gif``.

    Returns:
        Number of frames.

    Raises:
        InvalidValue: a method without chains, or a file that is no GIF.
        UnknownName: no such method, layout or setting.
        MissingExtra: overcooked-ai, pygame or pillow is not installed.
    """
    chosen = parse_method(method)
    if chosen.policy:
        raise InvalidValue("method", method, "one with chains, such as search+closed+repair")
    if path.suffix != ".gif":
        raise InvalidValue("film", str(path), "a file that ends in .gif")
    domain = open_domain(layout, "package")
    episode, _ = run_chains(chosen, domain, schedule_of(setting, seed), seed, trace=True)
    title = f"{domain.layout.name}, {setting}, seed {seed}: {method}"
    images = [_frame(domain, episode, number, title) for number in range(len(episode.states))]
    images += images[-1:] * PER_SECOND
    path.parent.mkdir(parents=True, exist_ok=True)
    shared = [image.quantize(64) for image in images]
    shared[0].save(path, save_all=True, append_images=shared[1:], duration=1000 // PER_SECOND, loop=0, optimize=True)
    return len(images)


def _frame(domain: Any, episode: Episode[Any], number: int, title: str) -> Image:
    from PIL import Image, ImageDraw, ImageFont

    from polyarm_core.domains.overcooked.package import render

    state = episode.states[number]
    kitchen = render(domain.kitchen, state, TILE)
    bottom = 2 * LINE + max(kitchen.height, LINE * (2 * SHOWN + 5))
    height = bottom + LINE * (NEWS + 1)
    image = Image.new("RGB", (kitchen.width + PANEL, height), "white")
    image.paste(kitchen, (0, 2 * LINE))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(13)
    draw.text((6, 8), title, fill=COLOURS["text"], font=font)

    x, y = kitchen.width + 14, 2 * LINE

    def write(text: str, colour: str) -> None:
        nonlocal y  # the next line
        draw.text((x, y), text, fill=COLOURS[colour], font=font)
        y += LINE

    ending = " delivered" if domain.succeeded(state) else ""
    write(f"frame {state.frame}{ending}", "done" if ending else "text")
    remaining = episode.remaining[number] if number < len(episode.remaining) else Plan(())
    for agent in domain.agents:
        chain = remaining.get(agent, ())
        y += LINE // 2
        write(f"{agent}: {len(chain)} steps left" if chain else f"{agent}: nothing left to do", "text")
        for place, step in enumerate(chain[:SHOWN]):
            waiting = isinstance(step, Wait)
            head = "> " if place == 0 else "  "
            write(f"  {head}{place + 1}. {step}", "wait" if waiting else "text" if place == 0 else "grey")
    x, y = 6, bottom
    for line, colour in _news(episode, number):
        write(line, colour)
    return image


def _news(episode: Episode[Any], number: int) -> list[tuple[str, str]]:
    """What happened in the last few frames, newest last: events, and how the plan was corrected and why."""
    news: list[tuple[int, str, str]] = []
    news += [(frame, f"frame {frame}: event {name}", "event") for frame, name in episode.events]
    for record in episode.plans:
        what = "repaired" if record.source == "repair" else "plan by the coordinator"
        if record.plan is None:
            what += " failed"
        why = f" ({record.reason}{': ' + record.cause if record.cause else ''})" if record.reason != "start" else ""
        news.append((record.frame, f"frame {record.frame}: {what}{why}", "plan"))
    shown = [(frame, text, colour) for frame, text, colour in news if number - LINGER <= frame <= number]
    newest = sorted(shown, key=lambda item: item[0])[-NEWS:]
    return [(shorten(text, WIDEST, placeholder=" ..."), colour) for _, text, colour in newest]
