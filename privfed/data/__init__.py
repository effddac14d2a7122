"""Where users come from: a cohort of users with their examples, and the generators and readers that make it."""
