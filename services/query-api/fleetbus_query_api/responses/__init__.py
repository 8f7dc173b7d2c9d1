"""The parts of every answer: rendered bytes, problems, Status documents of Kubernetes."""
