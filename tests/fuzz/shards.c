/* SPDX-License-Identifier: Apache-2.0 */
/* Token shards: the first byte is the window, the rest the file. */
#include "data/dataset.h"
#include "data/dataset_class.h"
#include "data/text_sets.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *path = fuzz_file(data + 1, size - 1), *paths[2] = { path, path };
    trek_dataset *set = trek_dataset_token_shards(paths, 2, 1 + data[0]);
    fuzz_settle(set != NULL);
    int64_t n = set ? trek_dataset_length(set) : 0, indices[3] = { 0, n / 2, n - 1 };
    fuzz_expect(!set || n > 0, "a set has windows");
    trek_tensor *sample[2] = { NULL, NULL };
    if (set)
        fuzz_settle(trek_dataset_get(set, indices, 3, sample) == TREK_OK);
    trek_tensor_release(sample[0]);
    trek_tensor_release(sample[1]);
    trek_dataset_free(&set);
    return 0;
}
