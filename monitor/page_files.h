/* SPDX-License-Identifier: Apache-2.0 */
/* The page's own files, made part of the library when it is built, and reading the files of runs without ever leaving their
 * folder. Internal. */
#ifndef TREK_MONITOR_PAGE_FILES_H
#define TREK_MONITOR_PAGE_FILES_H

#include <sys/stat.h>

#include "nn/text.h"

extern const unsigned char trek_page_index_html[], trek_page_style_css[], trek_page_script_js[];
extern const size_t trek_page_index_html_size, trek_page_style_css_size, trek_page_script_js_size;

enum { TREK_PAGE_PROCESSES = 65536 }; /* of a run, at most */

/* [A-Za-z0-9._-]+ of at most 255 bytes, not beginning with a point. */
bool trek_page_name_valid(const char *name, size_t length);
/* K of "process-K.jsonl" (decimal, no leading zeros); -1: another name. */
int trek_page_process_of(const char *name);
/* Whether path holds files of processes itself. */
bool trek_page_is_run(const char *path);
/* Opens a folder or a file in the folder `at`, never through a link; -1: not there, or something else. */
int trek_page_open_folder(int at, const char *name);
int trek_page_open_file(int at, const char *name, struct stat *about);

/* The numbers of the processes of a run, sorted; -1: no memory, without an error. `run` stays open. */
int trek_page_list_processes(int run, int **numbers);

/* Adds whole lines of a file, from `from` on, about `most` bytes of them (a line that is longer is whole), at most
 * 64 MiB. *next: where the first byte after them is. IO, MEMORY. */
trek_status trek_page_add_lines(trek_text *text, int file, int64_t from, int64_t size, int64_t most, int64_t *next);
/* Which bytes from `from` on those are: *count of them, none copied; 0 and *next behind 64 MiB that hold no line's end. IO. */
trek_status trek_page_find_lines(int file, int64_t from, int64_t size, int64_t most, int64_t *count, int64_t *next);
/* Whether the process that writes a file is known to be gone: it ran on this machine, and there is no such process. */
bool trek_page_writer_gone(int file, int64_t size);

#endif
