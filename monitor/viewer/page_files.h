/* SPDX-License-Identifier: Apache-2.0 */
/* The page's own files, which are built into the library, and reading the files of runs without ever leaving their
 * folder. */
#ifndef TREK_MONITOR_PAGE_FILES_H
#define TREK_MONITOR_PAGE_FILES_H

#include <sys/stat.h>

#include "nn/text.h"

extern const unsigned char trek_page_index_html[], trek_page_style_css[], trek_page_script_js[];
extern const size_t trek_page_index_html_size, trek_page_style_css_size, trek_page_script_js_size;

enum { TREK_PAGE_PROCESSES = 65536 }; /* the maximum in a run */

/* Checks for [A-Za-z0-9._-]+ of at most 255 bytes that does not begin with a point. */
bool trek_page_name_valid(const char *name, size_t length);
/* Returns K of "process-K.jsonl" (decimal, no leading zeros), or -1 for another name. */
int trek_page_process_of(const char *name);
/* Returns whether path itself contains the files of processes. */
bool trek_page_is_run(const char *path);
/* Open a folder or a file in the folder `at`, never through a link. They return -1 if it is missing or something else. */
int trek_page_open_folder(int at, const char *name);
int trek_page_open_file(int at, const char *name, struct stat *about);

/* Returns the sorted numbers of a run's processes, or -1 without memory and without an error. `run` stays open. */
int trek_page_list_processes(int run, int **numbers);

/* Adds whole lines of a file from `from` on, about `most` bytes of them (a longer line is taken whole), at most 64
 * MiB. *next is the position of the first byte after them. Fails with IO or MEMORY. */
trek_status trek_page_add_lines(trek_text *text, int file, int64_t from, int64_t size, int64_t most, int64_t *next);
/* Finds the bytes from `from` on that these would be, without copying: *count of them, or 0 with *next behind 64 MiB
 * that contain no line end. Fails with IO. */
trek_status trek_page_find_lines(int file, int64_t from, int64_t size, int64_t most, int64_t *count, int64_t *next);
/* Returns whether the process that writes a file is known to be gone: it ran on this machine, and there is no such
 * process. */
bool trek_page_writer_gone(int file, int64_t size);

#endif
