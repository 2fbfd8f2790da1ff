/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run --monitor: where the processes write what a page shows, and the page's server. */
#ifndef TREK_TOOLS_RUN_MONITOR_H
#define TREK_TOOLS_RUN_MONITOR_H

#include <stdbool.h>

/* Gives the job's run a name (TREK_RUN_NAME, unless it is set), which is the same for all future processes, whatever
 * machine they are on and however often they are restarted. With `shown`, also sets a folder (TREK_LOG_DIR, unless it
 * is set): "runs" in log_dir, or, if that is NULL, a temporary folder that is kept. Returns false after printing the
 * problem. */
bool monitor_prepare(bool shown, const char *log_dir, const char *program);
/* Starts trek-top --serve, from the folder of trek-run or from PATH, which prints the page's address on standard
 * error. It ends with trek-run, by SIGTERM. `port` is a text; NULL means the usual port. */
void monitor_start(const char *port);

#endif
