"""A demonstration file as one HTML page for people: numbers, plots, thumbnails, the doctor's findings."""
