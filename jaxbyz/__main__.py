"""`python -m jaxbyz` is the command line."""

from jaxbyz.cli import main

raise SystemExit(main())
