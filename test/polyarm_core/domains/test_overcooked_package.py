from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kitchen_play import play

from polyarm_core.domains.overcooked.batch import DELIVERY, KitchenBatch
from polyarm_core.domains.overcooked.kitchen import Kitchen
from polyarm_core.domains.overcooked.layouts import GRIDS, LAYOUT_NAMES, load_layout
from polyarm_core.domains.overcooked.package import PackageKitchen, render, require_package
from polyarm_core.errors import MissingExtra

layouts = pytest.mark.parametrize("name", LAYOUT_NAMES)


@pytest.fixture(autouse=True, scope="module")
def installed() -> None:
    try:
        require_package()
    except MissingExtra as error:
        pytest.skip(str(error))


@layouts
def test_our_grids_are_the_packages(name: str) -> None:
    from overcooked_ai_py.static import LAYOUTS_DIR

    text = (Path(LAYOUTS_DIR) / f"{name}.layout").read_text()
    assert GRIDS[name] == tuple(row.strip() for row in eval(text)["grid"].split("\n"))  # as the package reads it


@layouts
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kitchen_and_batch_do_what_the_package_does(name: str, seed: int) -> None:
    kitchen, package = Kitchen(load_layout(name)), PackageKitchen(load_layout(name))
    batch = KitchenBatch(kitchen.layout, 1)
    cooked = 0
    for before, controls, after in play(kitchen, seed, 450, noise=(0.1, 0.25, 0.4)[seed]):
        by_package, sparse, shaped = package.step_with_reward(before, controls)
        frame = batch.step(np.array(controls)[:, None])
        assert by_package == after == batch.state(0), (before, controls)
        assert shaped == tuple(frame.shaped[:, 0]) and sparse == tuple(DELIVERY * frame.delivered[:, 0])
        cooked += any(now > 0 > then for (_, then), (_, now) in zip(before.pots, after.pots, strict=True))
    assert cooked, "the game must reach the states that matter"


@pytest.mark.parametrize("cook_time", [1, 7, 30])
def test_other_cook_times_and_kitchens_that_take_turns(cook_time: int) -> None:
    # Recipes are global in the package: two kitchens that take turns must not get each other's cook time.
    name = "cramped_room"
    kitchen = Kitchen(load_layout(name), cook_time)
    package, other = PackageKitchen(load_layout(name), cook_time), PackageKitchen(load_layout(name))
    ready = 0
    for before, controls, after in play(kitchen, cook_time, 400):
        assert package.step(before, controls) == after
        other.step(other.start(), controls)
        ready += after.pots[0][1] == cook_time
    assert ready


@layouts
def test_states_survive_the_conversion(name: str) -> None:
    package = PackageKitchen(load_layout(name))
    for _, _, state in play(Kitchen(package.layout), 5, 300):
        assert package.from_package(package.to_package(state), state.delivered) == state
    assert package.from_package(package.mdp.get_standard_start_state(), 0) == package.start()


def test_blocked_tiles_are_out_of_use_there_too() -> None:
    kitchen, package = Kitchen(load_layout("cramped_room")), PackageKitchen(load_layout("cramped_room"))
    layout = kitchen.layout
    state = kitchen.start()._replace(blocked=tuple(sorted((layout.pots[0], layout.onion_dispensers[0]))))
    for before, controls, after in play(kitchen, 3, 400, state):
        assert package.step(before, controls) == after
    assert after.pots == ((0, -1),)


def test_pictures_show_the_kitchen() -> None:
    kitchen = Kitchen(load_layout("coordination_ring"))
    states = [after for _, _, after in play(kitchen, 0, 60)]
    start, later = render(kitchen, kitchen.start(), tile_size=30), render(kitchen, states[-1], tile_size=30)
    assert start.size == later.size == (150, 150) and start.mode == "RGB"
    changed = np.any(np.array(start) != np.array(later), axis=2)
    x, y = kitchen.layout.xy(kitchen.layout.starts[0])
    assert changed[30 * y : 30 * (y + 1), 30 * x : 30 * (x + 1)].any() and changed.mean() < 0.5
    assert render(kitchen, kitchen.start(), tile_size=30).tobytes() == start.tobytes()


def test_stepping_writes_nothing_next_to_the_packages_files() -> None:
    import overcooked_ai_py

    folder = Path(overcooked_ai_py.__file__).parent

    def files() -> set[Path]:
        return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}

    before = files()
    package = PackageKitchen(load_layout("forced_coordination"))
    state = package.start()
    for _ in range(5):
        state = package.step(state, (5, 3))
    assert files() == before


@pytest.mark.parametrize("missing", ["overcooked_ai_py", "gymnasium"])
def test_a_missing_library_is_named_with_its_extra(missing: str) -> None:
    # In a fresh interpreter: a module that is None in sys.modules cannot be imported.
    code = f"""
import sys
sys.modules[{missing!r}] = None
from polyarm_core.domains.overcooked.package import require_package
from polyarm_core.errors import MissingExtra
try:
    require_package()
except MissingExtra as error:
    print(error.library, error.extra)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    library, extra = done.stdout.split()
    assert (library, extra) == ({"overcooked_ai_py": "overcooked-ai"}.get(missing, missing), "overcooked")
