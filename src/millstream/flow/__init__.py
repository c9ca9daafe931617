"""What users write: frozen descriptions of workflows, and the plan made of them."""
