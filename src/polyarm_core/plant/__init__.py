"""The simulated plant: MuJoCo scene, robots, motion, grasp, simulation loop."""
