"""Plugins to start from, one per kind: `ponder new KIND NAME` copies one and names its class."""
