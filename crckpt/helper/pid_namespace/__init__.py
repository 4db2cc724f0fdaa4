"""New PID namespaces for a restored tree or a rehearsal: their first process is a helper."""
