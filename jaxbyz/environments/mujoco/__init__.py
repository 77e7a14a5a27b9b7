"""Gymnasium's planar MuJoCo tasks in JAX: one module per task, the physics in `engine` and the modules it names.

Every task module has a `TASK`, which is all that `task` needs to know about it.
"""
