"""`python -m unicorn_mgr.cli`: the same as `unicorn`."""

from unicorn_mgr.cli.main import main

main()
