/* SPDX-License-Identifier: Apache-2.0 */
/* The output of trek-run's processes: whole lines are passed on with the rank in front, and all bytes go to a file. */
#ifndef TREK_TOOLS_RUN_OUTPUT_H
#define TREK_TOOLS_RUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

enum { OUTPUT_LINE = 16384 }; /* a longer line is passed on in pieces */

/* One of a process's two outputs, read line by line. */
typedef struct output {
    int fd, to, file;      /* fd -1: closed, or bytes are fed; to, file -1: not passed on, not written */
    char head[320];        /* the text in front of lines */
    size_t used;
    char line[OUTPUT_LINE];
} output;

void output_begin(output *s, int fd, int to, const char *head);
/* Writes the text for a process's number, in colour if `to` can show it. */
void output_number(char head[320], int rank, int to);
/* Passes on whole lines, and the remaining bytes when the stream ends. */
void output_read(output *s);
/* The same for bytes that arrive in another way, and for their end. */
void output_feed(output *s, const char *bytes, size_t count);
void output_end(output *s);
void output_close(output *s);
/* Makes the folder if necessary. Returns false and errno on failure. */
bool output_folder(const char *folder);
/* Opens files for both outputs of a process, with a number that is not in use yet. Returns false and errno on failure. */
bool output_files(output streams[2], const char *folder, int rank);

#endif
