/* SPDX-License-Identifier: Apache-2.0 */
/* The secret by which the processes of a job know each other. */
#ifndef TREK_TOOLS_RUN_SECRET_H
#define TREK_TOOLS_RUN_SECRET_H

#include <stdbool.h>
#include <stddef.h>

/* Takes the secret from TREK_TOKEN or, if that is not set, from the file TREK_TOKEN_FILE; otherwise makes one. Within a process
 * of another job these variables are that job's, and only processes that join a job take them. These must have a secret. Returns
 * false after printing the problem. */
bool secret_find(bool joins, char *token, size_t size);

#endif
