"""`python -m ponder`, the same as `ponder`."""

from ponder.cli import main

main(prog_name="ponder")
