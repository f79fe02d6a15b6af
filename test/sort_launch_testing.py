"""For `launch_test`: sort.launch.py with the real launch_testing. test_launch.py runs it where that is installed."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import Any

import launch_testing.asserts
from launch import LaunchDescription
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_testing.actions import ReadyToTest

LAUNCH = Path(__file__).resolve().parents[1] / "launch"
ARGUMENTS = {"plant": "kinematic", "model": "heuristic:", "real_time_factor": "0", "seeds": "0", "out": "out"}


def generate_test_description() -> LaunchDescription:
    """The cell without physics and without a language model."""
    cell = PythonLaunchDescriptionSource(str(LAUNCH / "sort.launch.py"))
    return LaunchDescription([IncludeLaunchDescription(cell, launch_arguments=ARGUMENTS.items()), ReadyToTest()])


class TestWhileItRuns(unittest.TestCase):
    """One episode."""

    def test_episode_succeeds(self, proc_output: Any) -> None:
        proc_output.assertWaitFor("seed 0: success after", timeout=60)


@launch_testing.post_shutdown_test()
class TestAfterwards(unittest.TestCase):
    """After the monitor has ended and launch has ended the rest."""

    def test_every_process_ended_regularly(self, proc_info: Any) -> None:
        launch_testing.asserts.assertExitCodes(proc_info, allowable_exit_codes=[0])

    def test_no_process_printed_a_traceback(self, proc_output: Any) -> None:
        for output in proc_output:
            assert b"Traceback" not in output.text, output.text.decode()
