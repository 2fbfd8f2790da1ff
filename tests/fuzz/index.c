/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a state in several files, which lie in a folder with it: "a.st" has x and y, "b.st" z and one that trek has no
 * dtype for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/safetensors.h"
#include "tests/fuzz/fuzz.h"

#define A                                                                                                                        \
    "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4," \
    "6]}}"
#define B                                                                                                                        \
    "{\"z\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"w\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[1," \
    "3]}}"

static char folder[64];

static void put(const char *name, const void *data, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    fuzz_expect(file && fwrite(data, 1, size, file) == size && fclose(file) == 0, "a file in memory");
}

static void put_state(const char *name, const char *header, size_t data)
{
    unsigned char bytes[512] = { (unsigned char)strlen(header) };
    memcpy(bytes + 8, header, strlen(header));
    put(name, bytes, 8 + strlen(header) + data);
}

static void remove_folder(void)
{
    static const char *const names[] = { "a.st", "b.st", "index.json" };
    char path[128];
    for (int k = 0; k < 3; k++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[k]);
        unlink(path);
    }
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[128];
    if (!*folder) {
        snprintf(folder, sizeof folder, "/dev/shm/trek-fuzz-index-%d", (int)getpid());
        fuzz_expect(mkdir(folder, 0700) == 0, "a folder in memory");
        atexit(remove_folder);
        put_state("a.st", A, 6);
        put_state("b.st", B, 3);
    }
    put("index.json", data, size);
    snprintf(path, sizeof path, "%s/index.json", folder);
    for (int map = 0; map < 2; map++) {
        trek_state *state = trek_state_read_with(path, &(trek_state_read_opts){ .map = map });
        fuzz_settle(state != NULL);
        fuzz_expect(!state || trek_state_count(state) <= 3, "no more than the files have");
        fuzz_expect(!state || !trek_state_find(state, "x") || trek_state_find(state, "y"), "files as a whole");
        trek_state_free(&state);
    }
    return 0;
}
