"""KV-eviction policies, one per file: which tokens of a full cache to evict."""
