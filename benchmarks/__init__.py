"""What is measured of unicorn_mgr, and how to repeat it.  See README.md."""
