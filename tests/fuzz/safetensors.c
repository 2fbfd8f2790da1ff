/* SPDX-License-Identifier: Apache-2.0 */
/* State files. What is read is written again, and read again to the same. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nn/state.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/shapes.h"
#include "tests/fuzz/fuzz.h"

static void expect_same(const trek_state *a, const trek_state *b)
{
    fuzz_expect(trek_state_count(a) == trek_state_count(b), "as many tensors");
    for (int k = 0; k < trek_state_count(a); k++) {
        trek_tensor *x = trek_state_tensor(a, k), *y = trek_state_find(b, trek_state_name(a, k));
        fuzz_expect(y && trek_tensor_dtype(x) == trek_tensor_dtype(y), "each name, and its dtype");
        fuzz_expect(trek_shape_equal(trek_tensor_shape(x), trek_tensor_shape(y)), "its shape");
        size_t bytes = (size_t)trek_tensor_numel(x) * trek_dtype_size(trek_tensor_dtype(x));
        fuzz_expect(bytes == 0 || memcmp(trek_tensor_data(x), trek_tensor_data(y), bytes) == 0, "its bytes");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int rounds;
    trek_state *state = trek_state_read(fuzz_file(data, size));
    fuzz_settle(state != NULL);
    trek_state *mapped = trek_state_read_with(fuzz_file(data, size), &(trek_state_read_opts){ .map = true, .verify = true });
    fuzz_settle(mapped != NULL);
    fuzz_expect((mapped != NULL) == (state != NULL), "mapped files are read as others are");
    if (state)
        expect_same(state, mapped);
    trek_state_free(&mapped);
    if (state && rounds++ % 16 == 0) { /* which syncs a file */
        char path[64];
        snprintf(path, sizeof path, "/dev/shm/trek-fuzz-%d", (int)getpid());
        fuzz_expect(trek_state_write(state, path) == TREK_OK, "what was read can be written");
        trek_state *again = trek_state_read(path);
        unlink(path);
        fuzz_settle(again != NULL);
        fuzz_expect(again != NULL, "and be read again");
        expect_same(state, again);
        trek_state_free(&again);
    }
    trek_state_free(&state);
    return 0;
}
