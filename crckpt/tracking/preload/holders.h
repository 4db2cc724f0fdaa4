/* Make and open things for the process that had them, with its user and groups, not with root's. */
#pragma once

/* Whether this is CRIU itself, before it makes the processes: what they had has no holder here. */
int is_criu_itself(void);

/* Become the user whose process this is to be. Whether that is another than now: then call `become_builder`. */
int become_holder(void);

/* Have our own rights again. Keeps errno. */
void become_builder(void);
