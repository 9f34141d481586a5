"""Files behind a URL: downloaded completely into the cache, verified, and kept there within a size limit."""
