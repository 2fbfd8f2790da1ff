/* SPDX-License-Identifier: Apache-2.0 */
/* Counts which ways have served calls, for each device, and logs what was chosen for a shape. */
#include "tensor/cuda/paths.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *what, *path;
} names[TREK_CUDA_PATHS_COUNT] = {
#define NAMES_OF(NAME, what, path) { what, path },
    TREK_CUDA_PATHS(NAMES_OF)
#undef NAMES_OF
};

/* --- counts -------------------------------------------------------------------------------- */

static struct {
    _Atomic int64_t calls, refused;
    _Atomic(const char *) reason;
} counts[TREK_CUDA_MAX_DEVICES][TREK_CUDA_PATHS_COUNT];

int trek_cuda_paths(int index, trek_device_path *paths, int capacity)
{
    if (index < 0 || index >= TREK_CUDA_MAX_DEVICES || index >= trek_cuda_device_count())
        return 0;
    for (int k = 0; k < TREK_CUDA_PATHS_COUNT && k < capacity; k++) {
        paths[k] = (trek_device_path){ .what = names[k].what, .path = names[k].path };
        paths[k].calls = atomic_load_explicit(&counts[index][k].calls, memory_order_relaxed);
        paths[k].refused = atomic_load_explicit(&counts[index][k].refused, memory_order_relaxed);
        paths[k].reason = atomic_load_explicit(&counts[index][k].reason, memory_order_relaxed);
    }
    return TREK_CUDA_PATHS_COUNT;
}

void trek_cuda_paths_reset(int index)
{
    if (index < 0 || index >= TREK_CUDA_MAX_DEVICES)
        return;
    for (int k = 0; k < TREK_CUDA_PATHS_COUNT; k++) {
        atomic_store_explicit(&counts[index][k].calls, 0, memory_order_relaxed);
        atomic_store_explicit(&counts[index][k].refused, 0, memory_order_relaxed);
        atomic_store_explicit(&counts[index][k].reason, NULL, memory_order_relaxed);
    }
}

/* --- what was refused to this thread ---------------------------------------------------------- */

enum { REFUSALS = 4 }; /* how many are reported for a call; of more the first */

static _Thread_local const char *last_reason;
static _Thread_local struct {
    int count;
    trek_cuda_path paths[REFUSALS];
    const char *reasons[REFUSALS];
} refusals;

trek_status trek_cuda_refuse(const char *why)
{
    last_reason = why;
    return TREK_ERR_UNSUPPORTED;
}

bool trek_cuda_refuse_it(const char *why) { return trek_cuda_refuse(why) == TREK_OK; }

const char *trek_cuda_last_refusal(void) { return last_reason ? last_reason : "no reason is known"; }

void trek_cuda_path_begin(void) { refusals.count = 0; }

void trek_cuda_path_refused(const trek_cuda_queue *queue, trek_cuda_path path)
{
    const char *why = trek_cuda_last_refusal();
    atomic_fetch_add_explicit(&counts[queue->device->index][path].refused, 1, memory_order_relaxed);
    atomic_store_explicit(&counts[queue->device->index][path].reason, why, memory_order_relaxed);
    last_reason = NULL;
    if (refusals.count == REFUSALS)
        return;
    refusals.paths[refusals.count] = path;
    refusals.reasons[refusals.count++] = why;
}

/* --- the log ---------------------------------------------------------------------------------- */

/* Hashes of what was reported. When half of it is full nothing more is reported, because nobody reads that many lines. */
enum { TOLD = 2048, TOLD_MOST = 1024 };
static _Atomic uint64_t told[TOLD];
static atomic_int n_told;

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_of(const trek_cuda_queue *queue, trek_cuda_path path, const trek_cuda_path_shape *shape, int n)
{
    uint64_t hash = mix(mix(mix(1469598103934665603u, (uint64_t)queue->device->index), (uint64_t)path), (uint64_t)shape->dtype);
    for (int k = 0; k < n; k++)
        hash = mix(hash, (uint64_t)shape->numbers[k]);
    for (int k = 0; k < refusals.count; k++)
        hash = mix(mix(hash, (uint64_t)refusals.paths[k]), (uint64_t)(uintptr_t)refusals.reasons[k]);
    return hash ? hash : 1;
}

/* Returns true for one of all callers with this hash. */
static bool is_new(uint64_t hash)
{
    for (size_t at = hash % TOLD;; at = (at + 1) % TOLD) {
        uint64_t there = atomic_load_explicit(&told[at], memory_order_relaxed);
        if (there == hash || (there == 0 && atomic_load_explicit(&n_told, memory_order_relaxed) >= TOLD_MOST))
            return false;
        if (there == 0 && atomic_compare_exchange_strong(&told[at], &there, hash)) {
            atomic_fetch_add_explicit(&n_told, 1, memory_order_relaxed);
            return true;
        }
        if (there == hash)
            return false;
    }
}

static int count_names(const char *text)
{
    int n = *text != 0;
    for (; *text; text++)
        n += *text == ' ';
    return n;
}

static void tell(const trek_cuda_queue *queue, trek_cuda_path path, const trek_cuda_path_shape *shape, int n)
{
    char text[768];
    size_t at = (size_t)snprintf(text, sizeof text, "path: cuda:%d %s by %s: %s", queue->device->index, names[path].what,
                                 names[path].path, trek_dtype_name(shape->dtype));
    const char *name = shape->names;
    for (int k = 0; k < n && at < sizeof text; k++) {
        int length = (int)strcspn(name, " ");
        at += (size_t)snprintf(text + at, sizeof text - at, ", %.*s %lld", length, name, (long long)shape->numbers[k]);
        name += length + (name[length] == ' ');
    }
    for (int k = 0; k < refusals.count && at < sizeof text; k++)
        at += (size_t)snprintf(text + at, sizeof text - at, "; %s refused: %s", names[refusals.paths[k]].path,
                               refusals.reasons[k]);
    trek_log_message(TREK_LOG_LEVEL_INFO, "%s", text);
}

void trek_cuda_path_served(const trek_cuda_queue *queue, trek_cuda_path path, const trek_cuda_path_shape *shape)
{
    atomic_fetch_add_explicit(&counts[queue->device->index][path].calls, 1, memory_order_relaxed);
    if (trek_plugin_host->log_wanted(TREK_LOG_LEVEL_INFO)) {
        int n = count_names(shape->names);
        if (is_new(hash_of(queue, path, shape, n)))
            tell(queue, path, shape, n);
    }
    refusals.count = 0;
}
