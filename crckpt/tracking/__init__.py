"""Track which pages a tree wrote since its last dump, by the kernel's soft-dirty bits or by write protection."""
