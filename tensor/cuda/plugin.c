/* SPDX-License-Identifier: Apache-2.0 */
/* The plug-in's only exported function: it finds the devices and fills the table. */
#include <stdio.h>

#include "tensor/cuda/cuda.h"
#include "tensor/cuda/library.h"
#include "tensor/cuda/paths.h"

__attribute__((visibility("default"))) trek_status trek_backend_open(int abi, const trek_host *host, void *table,
                                                                         char *why, size_t size);

static void release_cached(trek_device device)
{
    trek_cuda_release_cached(device);
    trek_cuda_pinned_release_cached();
}

static void fill_functions(trek_backend *b)
{
    b->abi = TREK_BACKEND_ABI;
    b->name = "cuda";
    b->type = TREK_CUDA;
    b->device_count = trek_cuda_device_count;
    b->usable = trek_cuda_usable;
    b->info = trek_cuda_info;
    b->describe = trek_cuda_describe;
    b->allocate = trek_cuda_allocate;
    b->release = trek_cuda_release;
    b->record_use = trek_cuda_record_use;
    b->release_cached = release_cached;
    b->reset_peak = trek_cuda_reset_peak;
    b->pinned_allocate = trek_cuda_pinned_allocate;
    b->pinned_release = trek_cuda_pinned_release;
    b->pinned_release_after = trek_cuda_pinned_release_after;
    b->stats = trek_cuda_stats;
    b->copy_bytes = trek_cuda_copy_bytes;
    b->stream_new = trek_cuda_stream_new;
    b->stream_free = trek_cuda_stream_free;
    b->event_new = trek_cuda_event_new;
    b->event_free = trek_cuda_event_free;
    b->event_record = trek_cuda_event_record;
    b->stream_wait = trek_cuda_stream_wait;
    b->event_elapsed_ms = trek_cuda_event_elapsed_ms;
    b->event_sync = trek_cuda_event_sync;
    b->finish_streams = trek_cuda_finish_streams;
    b->sync = trek_cuda_sync;
    b->deferred_error = trek_cuda_deferred_error;
    b->capture_begin = trek_cuda_capture_begin;
    b->capture_end = trek_cuda_capture_end;
    b->capture_replay = trek_cuda_capture_replay;
    b->capture_free = trek_cuda_capture_free;
    b->capturing = trek_cuda_capturing;
    b->comm = trek_cuda_nccl();
    b->pages = &trek_cuda_device_pages;
    b->versions = trek_cuda_versions;
    b->paths = trek_cuda_paths;
    b->paths_reset = trek_cuda_paths_reset;
    trek_cuda_nvtx(b);
}

trek_status trek_backend_open(int abi, const trek_host *host, void *table, char *why, size_t size)
{
    trek_backend *backend = table;
    if (abi != TREK_BACKEND_ABI || host->abi != TREK_BACKEND_ABI) {
        snprintf(why, size, "libtrek-cuda is of another version of trek");
        return TREK_ERR_DEVICE;
    }
    trek_plugin_host = host;
    trek_status status = trek_cuda_open_devices(why, size);
    if (status != TREK_OK)
        return status;
    fill_functions(backend);
#define TREK_CUDA_REGISTER(file) trek_cuda_register_##file(backend);
    TREK_CUDA_FILES(TREK_CUDA_REGISTER)
#undef TREK_CUDA_REGISTER
    return TREK_OK;
}
