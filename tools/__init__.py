"""What the project is built with, and what is not part of it."""
