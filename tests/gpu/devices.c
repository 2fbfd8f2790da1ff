/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the CUDA devices as trek sees them. Status 77 and the reason if there is none. */
#include <stdio.h>
#include <stdlib.h>

#include "tensor/backend.h"
#include "tests/support/support.h"

/* Something small there and back, so that a device that only looks usable is found out. */
static bool works(trek_device device)
{
    trek_tensor *ones = trek_tensor_ones(trek_dims(1000), TREK_F32, device), *sum = ones ? trek_tensor_clone(ones) : NULL;
    double *values = test_read(sum), total = 0;
    for (int k = 0; values && k < 1000; k++)
        total += values[k];
    free(values);
    trek_tensor_release(ones);
    trek_tensor_release(sum);
    return total == 1000;
}

int main(void)
{
    char why[512] = "no CUDA device";
    const trek_backend *cuda = trek_backend_find(TREK_CUDA, why, sizeof why);
    int count = trek_device_count(TREK_CUDA), broken = 0;
    if (!cuda || count < 1) {
        printf("%s\n", why[0] ? why : "no CUDA device");
        return 77;
    }
    char versions[1600];
    cuda->versions(versions, sizeof versions);
    printf("%s\n", versions);
    for (int k = 0; k < count; k++) {
        trek_device_info info = { .name = "?" };
        if (cuda->info && cuda->info(k, &info) != TREK_OK)
            printf("cuda:%d: no information: %s\n", k, trek_error());
        printf("cuda:%d: %s, compute capability %d.%d, %d multiprocessors, %.1f GiB (%.1f free)\n", k, info.name, info.major,
               info.minor,
               info.multiprocessors, (double)info.memory / 0x1p30, (double)info.memory_free / 0x1p30);
        if (!works(trek_cuda(k))) {
            printf("cuda:%d does not work: %s\n", k, trek_error());
            broken++;
        }
        trek_error_clear();
    }
    return broken;
}
