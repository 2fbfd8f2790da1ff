/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of trek-run print: whole lines go on, numbered, and all bytes to a file. */
#ifndef TREK_TOOLS_RUN_OUTPUT_H
#define TREK_TOOLS_RUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

enum { OUTPUT_LINE = 16384 }; /* a line that is longer goes on in pieces */

/* One of a process's two outputs, read line by line. */
typedef struct output {
    int fd, to, file;      /* fd -1: closed, or bytes are fed; to, file -1: not passed on, not written */
    char head[320];        /* in front of lines */
    size_t used;
    char line[OUTPUT_LINE];
} output;

void output_begin(output *s, int fd, int to, const char *head);
/* The number of a process, in colour where `to` shows it. */
void output_number(char head[320], int rank, int to);
/* Passes on whole lines; what is left when the stream ends, too. */
void output_read(output *s);
/* The same for bytes that come otherwise, and their end. */
void output_feed(output *s, const char *bytes, size_t count);
void output_end(output *s);
void output_close(output *s);
/* The folder is made, if need be; false and errno. */
bool output_folder(const char *folder);
/* Files for both outputs of a process, of a number that is not taken. false and errno. */
bool output_files(output streams[2], const char *folder, int rank);

#endif
