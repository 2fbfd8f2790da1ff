/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions, which programs ask the runtime for by their names. */
#include <cstring>

#include "fake_internal.h"

using namespace fake;

/* A function of any type. */
using Function = void (*)();

static const struct {
    const char *name;
    Function function;
} known[] = {
    { "cuTensorMapEncodeTiled", (Function)encode_tiled },
    { "cuMemAddressReserve", (Function)reserve_addresses },
    { "cuMemAddressFree", (Function)free_addresses },
    { "cuMemCreate", (Function)create_frame },
    { "cuMemRelease", (Function)release_frame },
    { "cuMemMap", (Function)map_frame },
    { "cuMemUnmap", (Function)unmap_frame },
    { "cuMemSetAccess", (Function)allow_access },
    { "cuMemGetAllocationGranularity", (Function)frame_granularity },
};

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned int version,
                                                        unsigned long long flags,
                                                        enum cudaDriverEntryPointQueryResult *found)
{
    FAKE_ENTER();
    if (!name || !function || flags)
        return give(cudaErrorInvalidValue);
    bool is = false, old = version < 12000;
    *function = nullptr;
    for (const auto &k : known)
        if (!strcmp(name, k.name)) {
            is = true;
            if (!old)
                memcpy(function, &k.function, sizeof k.function);
        }
    if (found)
        *found = !is   ? cudaDriverEntryPointSymbolNotFound
                 : old ? cudaDriverEntryPointVersionNotSufficent
                       : cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
