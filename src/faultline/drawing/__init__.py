"""The attempts of a job drawn over time, for pages, for terminals and for the proof."""
