"""The HTTP API of a running workflow: what dashboard and command line look at and change it with.

``contract`` has the JSON, ``operations`` the paths, ``live_run`` what answers them in the driver.
"""
