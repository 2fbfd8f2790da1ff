/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of text: the first two bytes are window and stride, the rest the file. */
#include "data/dataset.h"
#include "data/dataset_class.h"
#include "data/text_sets.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    trek_dataset *set = trek_dataset_text_windows(fuzz_file(data + 2, size - 2), data[0],
                                                  &(trek_text_windows_opts){ .stride = data[1] });
    fuzz_settle(set != NULL);
    int64_t n = set ? trek_dataset_length(set) : 0, indices[3] = { 0, n / 2, n - 1 };
    fuzz_expect(!set || n > 0, "a set has windows");
    trek_tensor *sample[2] = { NULL, NULL };
    int words = 0;
    if (set) {
        fuzz_expect(trek_text_vocabulary(set, &words) && words > 0 && words <= 256, "a vocabulary");
        fuzz_settle(trek_dataset_get(set, indices, 3, sample) == TREK_OK);
    }
    for (int64_t k = 0; sample[0] && k < trek_tensor_numel(sample[0]); k++)
        fuzz_expect(((const int64_t *)trek_tensor_data(sample[0]))[k] < words, "numbers of the vocabulary");
    trek_tensor_release(sample[0]);
    trek_tensor_release(sample[1]);
    trek_dataset_free(&set);
    return 0;
}
