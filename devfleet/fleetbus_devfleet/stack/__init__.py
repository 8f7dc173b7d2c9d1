"""A whole fleet as processes of this machine.

`plan` says which, `stack` starts and stops them, `supervisor` owns a stack in the background, and
`state` shows it to other processes.
"""
