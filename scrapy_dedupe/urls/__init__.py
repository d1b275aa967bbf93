"""Which requests were made before: a growing Bloom filter, kept in a job's folder or in Redis."""
