/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are small enough to be read whole. Internal. */
#ifndef TREK_NN_READ_FILE_H
#define TREK_NN_READ_FILE_H

#include "tensor/status.h"

/* All of it, ended by a NUL, as a new string (trek_free); *length may be NULL. FORMAT: more than `most` bytes; IO, MEMORY. */
trek_status trek_read_file(const char *path, uint64_t most, char **text, size_t *length);

#endif
