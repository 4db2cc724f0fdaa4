"""The connection of two hosts: frames, messages, ssh, bandwidth and compression."""
