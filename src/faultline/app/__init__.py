"""What a program imports: the application, its tasks and their options, handles of jobs, and what a task is given."""
