/* SPDX-License-Identifier: Apache-2.0 */
/* How trek-run is called. */
#ifndef TREK_TOOLS_RUN_OPTIONS_H
#define TREK_TOOLS_RUN_OPTIONS_H

#include "tools/run_hosts.h"

typedef struct options {
    int processes, cores;  /* cores 0: not pinned */
    int enough;            /* 0: all */
    int restarts;
    double grace;
    bool prefix, quiet, help, agent, dry_run;
    const char *log_dir;   /* NULL: none */
    bool monitor;
    const char *page;      /* the port of the page; NULL: the usual one */
    hosts hosts;           /* none: this machine alone */
    const char *ssh, *remote_trek_run, *folder, *address, *port; /* NULL: not given */
    char *travels[MOST + 1]; /* names of variables, NULL-terminated */
    char **program;        /* NULL-terminated */
} options;

extern const char options_help[];

/* 0, or the status to end with at once: what is wrong was said. Values of --env are set. */
int options_read(int argc, char **argv, options *o);

#endif
