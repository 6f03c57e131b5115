"""Run one attempt after the other, whatever their tasks do."""
