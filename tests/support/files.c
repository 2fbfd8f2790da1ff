/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/files.h"

#include <stdio.h>

#include "tests/support/unit.h"

void test_write_bytes(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

int test_count_files(const char *path, const char *pattern)
{
    char command[256];
    int n = -1;
    snprintf(command, sizeof command, "ls '%s' | grep -c '%s'", path, pattern);
    FILE *pipe = popen(command, "r");
    assert_int_equal(fscanf(pipe, "%d", &n), 1);
    pclose(pipe);
    return n;
}
