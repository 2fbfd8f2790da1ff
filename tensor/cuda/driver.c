/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cuda/driver.h"

#include <string.h>

bool trek_cuda_driver_function(const char *name, void *function)
{
    void *address = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
#elif CUDART_VERSION >= 12000
    cudaError_t error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaErrorNotSupported;
    (void)name;
#endif
    if (error != cudaSuccess)
        (void)cudaGetLastError(); /* nobody else needs this error */
    bool has = error == cudaSuccess && found == cudaDriverEntryPointSuccess && address;
    address = has ? address : NULL;
    memcpy(function, &address, sizeof address);
    return has;
}
