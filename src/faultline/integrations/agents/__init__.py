"""What the integrations with frameworks for agents share."""
