/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in NumPy's format, and archives of them: all that an archive lists, and as a dataset. */
#include "data/npy.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size);
    trek_tensor *array = trek_npy_read(path);
    fuzz_settle(array != NULL);
    trek_tensor_release(array);
    trek_npz *npz = trek_npz_open(path);
    fuzz_settle(npz != NULL);
    for (int k = 0; npz && k < trek_npz_count(npz); k++) {
        array = trek_npz_read(npz, trek_npz_name(npz, k));
        fuzz_settle(array != NULL);
        trek_tensor_release(array);
    }
    trek_npz_close(&npz);
    trek_dataset *set = trek_dataset_npz(path);
    fuzz_settle(set != NULL);
    trek_dataset_free(&set);
    return 0;
}
