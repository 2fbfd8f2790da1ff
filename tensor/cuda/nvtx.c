/* SPDX-License-Identifier: Apache-2.0 */
/* Named ranges of the host's time for NVIDIA's profilers by NVTX, whose headers find a profiler themselves and do
 * nothing without one. */
#include "tensor/cuda/cuda.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

static void range_begin(const char *name) { nvtxRangePushA(name); }
static void range_end(void) { nvtxRangePop(); }

void trek_cuda_nvtx(trek_backend *backend)
{
    backend->range_begin = range_begin;
    backend->range_end = range_end;
}

#else

void trek_cuda_nvtx(trek_backend *backend) { (void)backend; } /* built without NVTX: the functions stay NULL */

#endif
