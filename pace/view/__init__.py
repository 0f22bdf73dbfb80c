"""What people look at: timelines, charts and pages of schedules and what-ifs."""
