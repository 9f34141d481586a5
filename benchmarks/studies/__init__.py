"""Studies: longer experiments, each with a table or a picture of docs/results.md; see each module for its command."""
