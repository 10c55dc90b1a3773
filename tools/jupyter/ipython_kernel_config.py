"""Installed as etc/ipython in an environment: its kernels know hvdlab's magics from the start."""

c = get_config()  # noqa: F821
c.InteractiveShellApp.extensions.append("hvdlab.magic")
