/* Give CRIU a quickly made /proc/PID/smaps, with the lines that it reads (smaps.c). */

/* Call it before any process is frozen. `table` is the file of what is known of this tree's flags; empty: none. */
void prepare_for_smaps(const char *table);

/*
 * A file to read instead of `smaps`, or `smaps` itself, of this frozen process. `maps` is its list of maps. Closes what
 * it does not return.
 */
int open_short_smaps(int smaps, int maps, int pid);
