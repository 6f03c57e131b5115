"""What a program remembers of its calls: numbers, records, endings. The job and the worker use what is here."""
