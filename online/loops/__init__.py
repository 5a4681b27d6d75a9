"""What online agents learn in: the loops that act and learn, and the buffers that they keep."""
