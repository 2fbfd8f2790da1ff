/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files that are small enough to be held in memory whole. */
#ifndef TREK_NN_READ_FILE_H
#define TREK_NN_READ_FILE_H

#include "tensor/status.h"

/* Returns the whole file, NUL-terminated, as a new string (free with trek_free). `length` may be NULL. Fails with
 * FORMAT if the file has more than `most` bytes, and with IO or MEMORY. */
trek_status trek_read_file(const char *path, uint64_t most, char **text, size_t *length);

#endif
