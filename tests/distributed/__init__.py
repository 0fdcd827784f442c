"""Two gloo processes have to equal one."""
