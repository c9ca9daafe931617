"""What a run tells about itself, and how it is shown."""
