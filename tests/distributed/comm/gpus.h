/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the device's own library of collectives can be tested: on TREK_TEST_DEVICE's machine, with so many GPUs. */
#ifndef TREK_TESTS_COMM_GPUS_H
#define TREK_TESTS_COMM_GPUS_H

#include "tensor/backend.h"
#include "tensor/device_comm.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* True, and says so, where the test cannot run. */
static inline bool skipped(int world)
{
    char why[400] = "TREK_TEST_DEVICE is no GPU";
    const trek_backend *backend = test_on_cpu() ? NULL : trek_backend_find(test_device().type, why, sizeof why);
    if (backend && !backend->comm)
        strcpy(why, "the plug-in was built without it");
    if (backend && backend->comm && backend->comm->available(why, sizeof why)) {
        if (trek_device_count(TREK_CUDA) >= world)
            return false;
        strcpy(why, "too few GPUs");
    }
    print_message("skipped: nccl: %s\n", why);
    return true;
}

#endif
