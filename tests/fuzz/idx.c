/* SPDX-License-Identifier: Apache-2.0 */
/* IDX files, as they are and gzip'd; alone, and as images beside their own first bytes as labels. */
#include <string.h>

#ifdef TREK_HAVE_ZLIB
#include <zlib.h>
#endif

#include "data/dataset.h"
#include "data/dataset_class.h"
#include "data/image_sets.h"
#include "tests/fuzz/fuzz.h"

static void read_all(const char *path)
{
    trek_tensor *tensor = trek_idx_read(path);
    fuzz_settle(tensor != NULL);
    trek_tensor_release(tensor);
    trek_dataset *set = trek_dataset_idx(path, path);
    fuzz_settle(set != NULL);
    int64_t n = set ? trek_dataset_length(set) : 0, indices[2] = { 0, n - 1 };
    trek_tensor *sample[2] = { NULL, NULL };
    if (n > 0)
        fuzz_settle(trek_dataset_get(set, indices, 2, sample) == TREK_OK);
    trek_tensor_release(sample[0]);
    trek_tensor_release(sample[1]);
    trek_dataset_free(&set);
}

#ifdef TREK_HAVE_ZLIB
/* A mutated file of gzip's ends at its checksum: so what was mutated is packed. */
static void read_packed(const uint8_t *data, size_t size)
{
    static uint8_t packed[1 << 16];
    z_stream stream;
    memset(&stream, 0, sizeof stream);
    if (deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return;
    stream.next_in = (Bytef *)(uintptr_t)data;
    stream.avail_in = (uInt)size;
    stream.next_out = packed;
    stream.avail_out = sizeof packed;
    if (deflate(&stream, Z_FINISH) == Z_STREAM_END)
        read_all(fuzz_file(packed, stream.total_out));
    deflateEnd(&stream);
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_all(fuzz_file(data, size));
#ifdef TREK_HAVE_ZLIB
    if (size % 4 == 0 && size < 1 << 15)
        read_packed(data, size);
#endif
    return 0;
}
