"""Start-up hook of the virtual environment: every interpreter in it finds ROS 2 and the messages that colcon built.

`tools/bootstrap.py` copies this file into the environment's site-packages as `_polyarm_env.py`, next to
`polyarm_env.pth`, whose one line imports it at interpreter start. So `.venv/bin/python`, `.venv/bin/pytest` and
`.venv/bin/polyarm` need no `source` before them.
"""

import os
import sys


def _prepend(variable: str, *paths: str) -> bool:
    """Put paths in front of a PATH-like environment variable unless they are in it; tell whether one was missing."""
    present = [part for part in os.environ.get(variable, "").split(os.pathsep) if part]
    missing = [path for path in paths if path not in present]
    if missing:
        os.environ[variable] = os.pathsep.join(missing + present)
    return bool(missing)


def _activate() -> None:
    install = os.path.join(os.path.dirname(sys.prefix), ".polyarm", "install")
    packages = os.path.join(install, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    if not os.path.isdir(packages):
        return  # the messages are not built yet
    # At the end: the editable checkout in src/ must win over the copy of its modules that colcon installed.
    sys.path.append(packages)
    wheels = os.path.isfile(os.path.join(sys.prefix, "share", "rclpy", "package.xml"))
    _prepend("AMENT_PREFIX_PATH", install, *([sys.prefix] if wheels else []))
    if _prepend("LD_LIBRARY_PATH", os.path.join(install, "lib")):
        # The dynamic linker reads the variable only when a process starts.
        if wheels:  # the wheels' own hook, which is imported after this one, restarts the interpreter
            os.environ.pop("_ROS_WHEELS_BOOTSTRAP_COMPLETE", None)
        else:
            os.execve(sys.executable, sys.orig_argv, os.environ)


_activate()
