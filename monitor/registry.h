/* SPDX-License-Identifier: Apache-2.0 */
/* How trek-top finds the runs of this machine. $XDG_RUNTIME_DIR/trek, or /tmp/trek-UID, has a file PID.run for each
 * program that writes one: a line with the run's folder, and a line that identifies the process. Nothing depends on
 * it: what cannot be written is left out. Entries of processes that have gone are removed by the next process that
 * writes or lists. */
#ifndef TREK_MONITOR_REGISTRY_H
#define TREK_MONITOR_REGISTRY_H

#include <stddef.h>

/* Add and remove this process's entry. A registry that others can write to is not used, and a warning says so once. */
void trek_registry_add(const char *folder);
void trek_registry_remove(void);
/* Calls `found` (which may be NULL) for each process that exists. `why` becomes "", or the reason why the registry is
 * not used. */
void trek_registry_list(void (*found)(void *arg, const char *folder), void *arg, char *why, size_t size);

#endif
