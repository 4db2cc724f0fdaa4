/* What CRIU reads of /proc/PID/smaps, without what the kernel does for the rest of it (smaps.c). */

/* Before any process is frozen. `table` is the file of what is known of this tree's flags; empty: there is none. */
void prepare_for_smaps(const char *table);

/*
 * A file to read instead of `smaps`, or `smaps` itself: of the process of this number, which is frozen, as `maps`, its
 * list of maps. Closes what it does not return.
 */
int as_smaps(int smaps, int maps, int pid);
