"""Robots, devices and the control loop: ``robot.py`` has the interfaces, ``loop.py`` the loop."""
