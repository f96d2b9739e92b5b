"""The coordinator: one for a cluster.  It knows, decides and tells; agents do."""
