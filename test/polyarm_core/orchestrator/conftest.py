"""Makes ``orchestrator_mixes`` importable for the tests of this folder (pytest's import mode leaves sys.path alone)."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("orchestrator", deadline=None)  # laws, not timings: a busy machine must not fail them
settings.load_profile("orchestrator")
