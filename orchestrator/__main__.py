"""`python -m orchestrator` is `xsa`."""

from orchestrator.cli import main

main()
