/* SPDX-License-Identifier: Apache-2.0 */
/* Reports: the live page of runs as one HTML file that can be kept, sent or shown without a server. They need the plug-in
 * libtrek-monitor (Debian: libtrek0.2-monitor). */
#ifndef TREK_MONITOR_REPORT_H
#define TREK_MONITOR_REPORT_H

#include "tensor/status.h"

TREK_BEGIN

/* Writes the page with all complete lines of n >= 1 runs to an HTML file. Each run is given by its folder (FOLDER/RUN), whose
 * last part is the name of the run. The file needs neither server nor network. It is written next to `path` and then renamed.
 * Errors: ARGUMENT, MEMORY. IO if a folder is not a run or cannot be read, or `path` cannot be written. */
TREK_API trek_status trek_report_write(const char *path, const char *const *runs, int n);

TREK_END

#endif
