"""The agent: one on every node.  It starts, watches and stops workers, and tells what is true."""
