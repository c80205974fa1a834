"""Runs the program of this package: `python -m spanscore`."""

import os
import sys
import sysconfig

# Where pip puts programs: in the environment, for the user (--user), beside the package (--target).
folders = [
    sysconfig.get_path("scripts"),
    sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")),
    os.path.join(os.path.dirname(__file__), "..", "bin"),
]
programs = [os.path.join(folder, "spanscore") for folder in folders]
program = next(filter(os.path.isfile, programs), None)
if program is None:
    sys.exit(f"error: cannot find the program `spanscore` in {', '.join(folders)}; install the package anew")
os.execv(program, [program, *sys.argv[1:]])
