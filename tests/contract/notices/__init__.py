"""What vendors document of their metadata services, asked of the stand-ins, and of a real one where there is one."""
