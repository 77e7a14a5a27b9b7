"""Gymnasium's planar MuJoCo tasks in JAX: one module per task, the physics in `engine` and the modules it names.

Every task module has `default_params` and the pure functions `initial_state(params, qpos, qvel)`,
`transition(params, state, action)` and `observe(params, state)`, and a gymnax environment.
"""
