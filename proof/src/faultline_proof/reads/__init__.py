"""What the proof reads of a database, as `faultline.store.reads` does for the product."""
