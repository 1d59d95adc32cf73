"""`python -m jitcl` is the command `jitcl`."""

from __future__ import annotations

from jitcl.cli.main import main

main()
