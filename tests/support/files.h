/* SPDX-License-Identifier: Apache-2.0 */
/* Files of tests. */
#ifndef TREK_TESTS_FILES_H
#define TREK_TESTS_FILES_H

#include <stddef.h>

/* Writes a file of these bytes. */
void test_write_bytes(const char *path, const void *bytes, size_t length);
/* Returns how many names in a folder match a regular expression as grep knows them. */
int test_count_files(const char *path, const char *pattern);

#endif
