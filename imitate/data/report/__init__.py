"""A demonstration file as one HTML page that a person looks at: numbers, plots, thumbnails, the doctor's findings."""
