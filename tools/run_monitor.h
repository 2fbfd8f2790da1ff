/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run --monitor: where the processes write what a page shows, and the page's server. */
#ifndef TREK_TOOLS_RUN_MONITOR_H
#define TREK_TOOLS_RUN_MONITOR_H

#include <stdbool.h>

/* Gives the job's run a name (TREK_RUN_NAME, where it is not set), the same for all processes that are to come, whatever machine
 * they are on and how often they are started again. With shown also a folder (TREK_LOG_DIR, where it is not set): "runs" of
 * log_dir, or (NULL) a temporary one that stays. false, said. */
bool monitor_prepare(bool shown, const char *log_dir, const char *program);
/* trek-top --serve, from beside trek-run or from PATH, says on standard error where the page is. It ends with trek-run, by
 * SIGTERM. port: a text, NULL: the usual one. */
void monitor_start(const char *port);

#endif
