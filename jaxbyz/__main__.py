"""`python -m jaxbyz` is the command `jaxbyz`."""

from jaxbyz.cli import main

raise SystemExit(main())
