/* SPDX-License-Identifier: Apache-2.0 */
/* PNG and JPEG as trek takes them from their libraries. The first byte says what is asked for. */
#include "data/image.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int channels[] = { 0, 1, 3, 4 };
    if (size < 1)
        return 0;
    trek_image_read_opts opts = { .channels = channels[data[0] & 3], .shrink_to = data[0] >> 2 & 15, .most_pixels = 1 << 16 };
    trek_tensor *image = trek_image_decode(data + 1, size - 1, "input", &opts);
    fuzz_settle(image != NULL);
    if (!image)
        return 0;
    trek_shape shape = trek_tensor_shape(image);
    fuzz_expect(shape.ndim == 3 && shape.sizes[0] == (opts.channels ? opts.channels : 3), "channels that were asked for");
    fuzz_expect(shape.sizes[1] > 0 && shape.sizes[2] > 0 && shape.sizes[1] * shape.sizes[2] <= opts.most_pixels,
                "pixels allowed");
    trek_tensor_release(image);
    return 0;
}
