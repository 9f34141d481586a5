"""HTML report on a demonstration file: numbers, plots, thumbnails, the doctor's findings."""
