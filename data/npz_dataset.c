/* SPDX-License-Identifier: Apache-2.0 */
/* The arrays of an archive as a dataset's fields. */
#include "data/dataset_internal.h"
#include "data/npy.h"

trek_dataset *trek_dataset_npz(const char *path)
{
    trek_npz *npz = trek_npz_open(path);
    int n = npz ? trek_npz_count(npz) : 0, read = 0;
    const char **names = n > 0 ? trek_calloc((size_t)n, sizeof *names) : NULL;
    trek_tensor **tensors = names ? trek_calloc((size_t)n, sizeof *tensors) : NULL;
    if (npz && n == 0)
        trek_fail(TREK_ERR_FORMAT, "%s: there are no arrays in it", path);
    for (; tensors && read < n; read++) {
        names[read] = trek_npz_name(npz, read);
        tensors[read] = trek_npz_read(npz, names[read]);
        if (!tensors[read])
            break;
    }
    trek_dataset *set = tensors && read == n ? trek_dataset_tensors(names, tensors, n) : NULL;
    for (int k = 0; k < read; k++)
        trek_tensor_release(tensors[k]);
    trek_free(tensors);
    trek_free(names);
    trek_npz_close(&npz);
    return set;
}
