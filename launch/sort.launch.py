"""The scenario `sort`: three arms relay cubes to their pads. All arguments of cell.launch.py but `scenario`."""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource


def generate_launch_description() -> LaunchDescription:
    """cell.launch.py with its scenario chosen."""
    # A plain path, so that `ros2 launch polyarm sort.launch.py --show-args` can list the cell's arguments.
    cell = PythonLaunchDescriptionSource(str(Path(__file__).with_name("cell.launch.py")))
    return LaunchDescription([IncludeLaunchDescription(cell, launch_arguments={"scenario": "sort"}.items())])
