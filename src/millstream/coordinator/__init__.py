"""The coordinator: epochs, receipts, commit, and who is alive."""
