/* SPDX-License-Identifier: Apache-2.0 */
/* Tables: as they are taken for, and with their first column as words, and as numbers of which some are missing. */
#include "data/csv.h"
#include "data/dataset_class.h"
#include "tests/fuzz/fuzz.h"

static void read_table(const char *path, const trek_csv_opts *opts)
{
    trek_dataset *set = trek_dataset_csv(path, opts);
    fuzz_settle(set != NULL);
    int64_t n = set ? trek_dataset_length(set) : 0, indices[2] = { 0, n - 1 };
    int fields = set ? trek_dataset_field_count(set) : 0;
    trek_tensor *sample[64];
    if (n > 0 && fields <= 64) {
        fuzz_settle(trek_dataset_get(set, indices, 2, sample) == TREK_OK);
        for (int k = 0; k < fields; k++)
            trek_tensor_release(sample[k]);
    }
    trek_dataset_free(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size);
    trek_csv_field fields[2] = { { .name = "0", .category = true },
                                 { .name = "0", .dtype = TREK_I32, .fill = true, .missing = 5 } };
    read_table(path, NULL);
    read_table(path, &(trek_csv_opts){ .fields = fields, .n_fields = 1, .no_header = true, .delimiter = ';' });
    read_table(path, &(trek_csv_opts){ .fields = fields + 1, .n_fields = 1, .no_header = true });
    return 0;
}
