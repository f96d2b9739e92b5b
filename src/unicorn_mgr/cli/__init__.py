"""The command line: one file a command."""

import os

# gRPC's own lines about connections that end say nothing to a user; set before it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
