"""Users with their examples: the contract of a data source, cohorts, generators and readers."""
