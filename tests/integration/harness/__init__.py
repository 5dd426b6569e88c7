"""What the integration tests share: jobs, the command, the daemon, and the check that nothing is left
behind.
"""
