"""The default model's name and one decision of an arm, shared by the tests of this folder."""

from __future__ import annotations

from polyarm_core.llm.interface import Prompt

NAME = "smollm2-135m-instruct"

PROMPT = Prompt(
    "You are bob, a robot arm in a team. Bring each object to its goal or nearer to it.\n"
    "Goals: blue_square to pad2, pink_polygon to pad4.\n",
    "You see: pink_polygon is on panel3; blue_square is on panel5.\nAction:",
)
CANDIDATES = (
    "stay",
    "move pink_polygon from panel3 to pad4",
    "move blue_square from panel5 to panel3",
    "move blue_square from panel5 to pad4",
)
