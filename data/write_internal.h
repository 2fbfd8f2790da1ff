/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a file whole or not at all, through a stream. */
#ifndef TREK_DATA_WRITE_INTERNAL_H
#define TREK_DATA_WRITE_INTERNAL_H

#include <stdio.h>

#include "tensor/status.h"

/* Calls write(file, arg) and puts the file in its place. `write` need not report failures of the stream itself. Fails
 * with IO, path and reason. */
trek_status trek_write_whole(const char *path, trek_status (*write)(FILE *file, void *arg), void *arg);

#endif
