"""Clipping, the noise gate, the ledger and what releases cost."""
