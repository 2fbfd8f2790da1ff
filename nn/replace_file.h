/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a file whole or not at all: beside its place, synced, then renamed. What writers that were killed have left
 * behind is removed by the next one in the same folder, and by those who open a file there. Internal. */
#ifndef TREK_NN_REPLACE_FILE_H
#define TREK_NN_REPLACE_FILE_H

#include "tensor/status.h"

typedef struct trek_file_replacement {
    int file;                 /* to be written to; -1: none */
    char *temporary;
    const char *path;
} trek_file_replacement;

/* A new empty file beside path, which is borrowed until the end. IO, MEMORY; then there is no end. */
trek_status trek_replace_begin(trek_file_replacement *replacement, const char *path);
/* Puts the file in its place if status is OK, and returns when it is safe there; else removes it and returns status. */
trek_status trek_replace_end(trek_file_replacement *replacement, trek_status status);

/* The file `from` gets path as one more name, in one step: who looks finds the earlier file or this one. *done false: the
 * file system has no such names, and nothing has changed. IO, MEMORY. */
trek_status trek_replace_by_link(const char *from, const char *path, bool *done);

/* Makes the name of a folder that was just made safe on disk, where its file system can; failures do not matter. */
void trek_replace_sync_parent(const char *path);

/* Removes what dead writers of path, and of other files beside it, have left; failures do not matter. */
void trek_replace_tidy(const char *path);

#endif
