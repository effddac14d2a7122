"""Test a privacy claim: black-box audit, one-run audit, replay."""
