"""Robots, devices and the control loop: ``robot.py`` is the interface, ``loop.py`` the loop."""
