"""Files behind a URL: fetched whole into the cache, verified, and kept there within a bound."""
