"""The URL filter: a growing Bloom filter of request fingerprints, stored in a job's folder or in Redis."""
