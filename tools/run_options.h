/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of trek-run. */
#ifndef TREK_TOOLS_RUN_OPTIONS_H
#define TREK_TOOLS_RUN_OPTIONS_H

#include "tools/run_hosts.h"

typedef struct options {
    int processes, cores;  /* cores 0: not pinned */
    int enough;            /* 0 for all */
    bool joins;            /* --join: address and port are those of a job that is running */
    int restarts;
    double grace;
    bool prefix, quiet, help, agent, dry_run;
    const char *log_dir;   /* NULL for none */
    bool monitor;
    const char *page;      /* the port of the page; NULL for the usual one */
    hosts hosts;           /* none: only this machine */
    const char *ssh, *remote_trek_run, *folder, *address, *port; /* NULL if not given */
    char *travels[MOST + 1]; /* names of variables, NULL-terminated */
    char **program;        /* NULL-terminated */
} options;

/* In pieces, NULL-terminated. */
extern const char *const options_help[];

/* Returns 0, or the status to end with at once after the problem was printed. The values of --env have been set. */
int options_read(int argc, char **argv, options *o);

#endif
