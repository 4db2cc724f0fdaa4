/* The log of CRIU's code in a process. */
#pragma once

/* Before CRIU writes to this file: if it is its log, write there what its code has said. */
void pass_log_on(int number);
