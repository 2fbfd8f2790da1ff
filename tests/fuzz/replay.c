/* SPDX-License-Identifier: Apache-2.0 */
/* Where there is no libFuzzer: each file of the folders (or files) that are named is one input. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        return perror(path), 1;
    long size = ftell(file);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1); /* exactly so much, so that reading beyond it is noticed */
    rewind(file);
    bool read = size >= 0 && data && fread(data, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (read)
        LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return !read;
}

int main(int argc, char **argv)
{
    int failed = LLVMFuzzerInitialize(&argc, &argv), inputs = 0;
    for (int a = 1; a < argc; a++) {
        if (argv[a][0] == '-') /* libFuzzer's options */
            continue;
        struct dirent **names = NULL;
        int n = scandir(argv[a], &names, NULL, alphasort);
        if (n < 0) {
            failed |= replay(argv[a]);
            inputs++;
        }
        for (int k = 0; k < n; k++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[a], names[k]->d_name);
            if (names[k]->d_name[0] != '.') {
                failed |= replay(path);
                inputs++;
            }
            free(names[k]);
        }
        free(names);
    }
    printf("%d inputs\n", inputs);
    return failed || inputs == 0;
}
