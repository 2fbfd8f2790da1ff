/* SPDX-License-Identifier: Apache-2.0 */
/* On which machines the processes of a job run. */
#ifndef TREK_TOOLS_RUN_HOSTS_H
#define TREK_TOOLS_RUN_HOSTS_H

#include <stdbool.h>

#include "tools/run_start.h"

typedef struct host {
    char *name;            /* as ssh takes it: [user@]name */
    int slots;             /* as many processes as it may have; 0: nobody said */
    bool here;             /* this machine */
    int first, processes;  /* its ranks, from place_processes on */
} host;

typedef struct hosts {
    host *list;
    int n;
} hosts;

/* "a:2,b:4,me@c,[::1]:2". What is wrong is said, after `what`; false. A name that comes again adds its slots. */
bool hosts_read_list(hosts *h, const char *what, const char *text);
/* A file of lines "name slots=N" or "name:N", with comments after #. The same. */
bool hosts_read_file(hosts *h, const char *path);
/* Ranks to hosts, in their order: processes in all, or 0: as many as there are slots, one where nobody said. Hosts without slots
 * share what the others leave. Those that get none go. How many there are in all; 0, said: they are too many. */
int hosts_place(hosts *h, int processes);
/* The name alone: without the user. */
const char *host_address(const host *h);

#endif
