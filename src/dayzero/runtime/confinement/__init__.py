"""Inside the process that runs somebody else's code: what is taken from it before that code is imported.

Standard library only, and no threads before everything is taken. The side that starts it is `runtime/isolation.py`.
"""
