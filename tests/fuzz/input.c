/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tensor/log.h"
#include "tensor/status.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    setenv("TREK_CACHE", "off", 1); /* each tensor's memory is its own, so that its ends are watched */
    setenv("TREK_THREADS", "1", 1);
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    return 0;
}

const char *fuzz_file(const uint8_t *data, size_t size)
{
    static int file = -1;
    static char path[64];
    if (file < 0)
        file = memfd_create("input", MFD_CLOEXEC);
    fuzz_expect(file >= 0 && ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size, "a file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return path;
}

void fuzz_expect(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s (%s)\n", what, trek_error());
    abort();
}

void fuzz_settle(bool made)
{
    fuzz_expect(made == (trek_error_status() == TREK_OK), "a result, or an error that says why there is none");
    fuzz_expect(made || trek_error()[0], "an error has a message");
    trek_error_clear();
}
