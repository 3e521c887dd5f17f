"""What starting Ray takes from the environment."""

import os
import subprocess
import sys


def test_what_a_user_sets_for_ray_stays_and_what_a_run_relies_on_does_not() -> None:
    theirs = {"RAY_worker_niceness": "5", "RAY_USAGE_STATS_ENABLED": "1", "TUNE_DISABLE_SIGINT_HANDLER": "0"}
    names = (*theirs, "TUNE_PRINT_ALL_TRIAL_ERRORS")
    code = f"import os, orchestrator.launch; print(*(os.environ[name] for name in {names}))"
    for given, expected in ((theirs, "5 1 1 0"), ({}, "0 0 1 0")):
        env = {name: value for name, value in os.environ.items() if name not in names} | given
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == expected.split()
