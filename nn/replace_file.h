/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a file whole or not at all: it is written next to its final name, synced and then renamed. Leftovers of
 * writers that were killed are removed by the next writer in the same folder, and by whoever opens a file there. */
#ifndef TREK_NN_REPLACE_FILE_H
#define TREK_NN_REPLACE_FILE_H

#include "tensor/status.h"

typedef struct trek_file_replacement {
    int file;                 /* open for writing; -1 if there is none */
    char *temporary;
    const char *path;
} trek_file_replacement;

/* Makes a new empty file next to path, which is borrowed until the end. Fails with IO or MEMORY; trek_replace_end must
 * not be called then. */
trek_status trek_replace_begin(trek_file_replacement *replacement, const char *path);
/* If status is OK, puts the file in its place and returns once it is safe there. Otherwise removes the file and
 * returns status. */
trek_status trek_replace_end(trek_file_replacement *replacement, trek_status status);

/* Gives the file `from` the additional name path in one step, so that readers find either the earlier file or this
 * one. *done is false if the file system has no such links; nothing has changed then. Fails with IO or MEMORY. */
trek_status trek_replace_by_link(const char *from, const char *path, bool *done);

/* Makes the name of a newly made folder safe on disk, where the file system can. Failures do not matter. */
void trek_replace_sync_parent(const char *path);

/* Removes the leftovers of dead writers of path and of other files next to it. Failures do not matter. */
void trek_replace_tidy(const char *path);

#endif
