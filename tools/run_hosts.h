/* SPDX-License-Identifier: Apache-2.0 */
/* The machines on which the processes of a job run. */
#ifndef TREK_TOOLS_RUN_HOSTS_H
#define TREK_TOOLS_RUN_HOSTS_H

#include <stdbool.h>

#include "tools/run_start.h"

typedef struct host {
    char *name;            /* as ssh accepts it: [user@]name */
    int slots;             /* how many processes it may have; 0 if not given */
    bool here;             /* this machine */
    int first, processes;  /* its ranks; set by hosts_place */
} host;

typedef struct hosts {
    host *list;
    int n;
} hosts;

/* Reads "a:2,b:4,me@c,[::1]:2". On an error it prints `what` and the problem, and returns false. A repeated name adds
 * its slots. */
bool hosts_read_list(hosts *h, const char *what, const char *text);
/* The same for a file of lines "name slots=N" or "name:N", with comments after #. */
bool hosts_read_file(hosts *h, const char *path);
/* Assigns ranks to hosts in order. `processes` is the total, or 0 for as many as there are slots, with one for a host
 * without a number. Hosts without slots share what the others leave. Hosts that get none are removed. Returns the
 * total, or 0 after printing that there are too many. */
int hosts_place(hosts *h, int processes);
/* Returns the name alone, without the user. */
const char *host_address(const host *h);

#endif
