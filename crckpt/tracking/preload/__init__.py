"""The libraries that CRIU is started with, and their C sources."""
