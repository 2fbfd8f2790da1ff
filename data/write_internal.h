/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a file whole or not at all, through a stream. */
#ifndef TREK_DATA_WRITE_INTERNAL_H
#define TREK_DATA_WRITE_INTERNAL_H

#include <stdio.h>

#include "tensor/status.h"

/* Calls write(file, arg), whose failures of the stream itself need no report, and puts the file in its place. IO with path and
 * reason. */
trek_status trek_write_whole(const char *path, trek_status (*write)(FILE *file, void *arg), void *arg);

#endif
