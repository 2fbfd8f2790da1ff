/* SPDX-License-Identifier: Apache-2.0 */
/* The live page of runs as one HTML file, to be kept, sent or shown where no server is. */
#ifndef TREK_MONITOR_REPORT_H
#define TREK_MONITOR_REPORT_H

#include "tensor/status.h"

TREK_BEGIN

/* Writes the page with all whole lines of n runs in it, each given by its folder (FOLDER/RUN; its last part is the run's name).
 * The file needs nothing else: no server, no network. It is written beside its place, then renamed. At least one run;
 * ARGUMENT; IO: a folder is no run or cannot be read, path cannot be written; MEMORY. */
TREK_API trek_status trek_report_write(const char *path, const char *const *runs, int n);

TREK_END

#endif
