/* SPDX-License-Identifier: Apache-2.0 */
/* Where trek-top finds the runs of this machine: $XDG_RUNTIME_DIR/trek, else /tmp/trek-UID, has a file PID.run for each program
 * that writes one: a line with the run's folder, and one that tells which process that is. Nothing depends on it: what cannot be
 * written is left out. What processes have left behind that have gone is removed by the next that writes or lists. Internal. */
#ifndef TREK_MONITOR_REGISTRY_H
#define TREK_MONITOR_REGISTRY_H

#include <stddef.h>

/* This process's entry. A registry that is not this user's alone is not used, which is a warning once. */
void trek_registry_add(const char *folder);
void trek_registry_remove(void);
/* Calls found (if given) for each process that is there. why: "", or why the registry is not used. */
void trek_registry_list(void (*found)(void *arg, const char *folder), void *arg, char *why, size_t size);

#endif
