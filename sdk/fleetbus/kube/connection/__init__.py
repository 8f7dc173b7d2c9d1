"""The connection to one API server: kubeconfig, TLS, credentials, sessions, identity checks."""
