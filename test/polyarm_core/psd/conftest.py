"""Makes ``psd_samples`` importable for the tests of this folder (pytest's import mode leaves sys.path alone)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
