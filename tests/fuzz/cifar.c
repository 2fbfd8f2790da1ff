/* SPDX-License-Identifier: Apache-2.0 */
/* CIFAR-10's records: a folder whose test_batch.bin is the input. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/dataset.h"
#include "data/dataset_class.h"
#include "data/image_sets.h"
#include "tests/fuzz/fuzz.h"

static char folder[] = "/tmp/trek-fuzz-XXXXXX", name[64];

static void remove_folder(void)
{
    unlink(name);
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size); /* always the same */
    if (!name[0]) {
        fuzz_expect(mkdtemp(folder) != NULL, "a folder");
        snprintf(name, sizeof name, "%s/test_batch.bin", folder);
        fuzz_expect(symlink(path, name) == 0 && atexit(remove_folder) == 0, "a link");
    }
    trek_dataset *set = trek_dataset_cifar10(folder, TREK_DATA_SPLIT_TEST);
    fuzz_settle(set != NULL);
    int64_t n = set ? trek_dataset_length(set) : 0, indices[2] = { 0, n - 1 };
    fuzz_expect(!set || n > 0, "a set has samples");
    trek_tensor *sample[2] = { NULL, NULL };
    if (set)
        fuzz_settle(trek_dataset_get(set, indices, 2, sample) == TREK_OK);
    trek_tensor_release(sample[0]);
    trek_tensor_release(sample[1]);
    trek_dataset_free(&set);
    return 0;
}
