/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's backend: memory, trivial streams, and the kernels of the best instruction set that the machine has. */
#include "tensor/cpu/optim/update.h"
#include "tensor/cpu/products/amx.h"
#include "tensor/cpu/use.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "tensor/pool.h"
#include "tensor/products_way.h"
#include "tensor/trace.h"

void trek_cpu_kernels_baseline(trek_backend *b);
void trek_cpu_kernels_avx2(trek_backend *b);
void trek_cpu_kernels_avx512(trek_backend *b);
bool trek_gemm_amx_faster_avx512(trek_dtype dtype); /* products/gemm_amx.h */

/* The stream of a device on which no work is ever pending. */
struct trek_device_stream {
    trek_device device;
};

struct trek_event {
    int64_t at_ns; /* 0: never recorded */
};

static int cpu_device_count(void) { return trek_cores(); }

static bool cpu_usable(int index, char *why, size_t size)
{
    if (index >= 0)
        return true;
    snprintf(why, size, "cpu:%d is no device", index);
    return false;
}

static trek_status cpu_allocate(trek_device device, size_t bytes, void **data, void **handle)
{
    (void)device, (void)handle;
    *data = trek_block_alloc(bytes);
    return *data ? TREK_OK : TREK_ERR_MEMORY;
}

static void cpu_release(trek_device device, void *data, void *handle)
{
    (void)device, (void)handle;
    trek_block_free(data);
}

static void cpu_record_use(void *handle, trek_device_stream *stream) { (void)handle, (void)stream; }

static trek_status cpu_pinned_allocate(size_t bytes, void **data)
{
    *data = trek_block_alloc(bytes);
    return *data ? TREK_OK : TREK_ERR_MEMORY;
}

static void cpu_pinned_release_after(void *data, trek_device device, trek_device_stream *stream)
{
    (void)device, (void)stream;
    trek_block_free(data);
}

/* Reads the system's name of the CPU. It is "CPU" if the system has none, because not all processors have that line. */
static void read_model(char *name, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, size, "CPU");
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        line[strcspn(line, "\n")] = '\0';
        if (!value || !*(value += 1 + strspn(value + 1, " \t")))
            continue;
        snprintf(name, size, "%.120s", value);
        break;
    }
    if (file)
        fclose(file);
}

static trek_status cpu_describe(int index, trek_device_info *info)
{
    (void)index;
    *info = (trek_device_info){ .multiprocessors = trek_cores() };
    read_model(info->name, sizeof info->name);
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    info->memory = pages > 0 && size > 0 ? (int64_t)pages * size : 0;
    return TREK_OK;
}

static trek_status cpu_info(int index, trek_device_info *info)
{
    trek_status status = cpu_describe(index, info);
    long available = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    info->memory_free = available > 0 && size > 0 ? (int64_t)available * size : 0;
    return status;
}

static trek_status cpu_copy_bytes(void *to, trek_device to_device, const void *from, trek_device from_device, size_t bytes,
                                  trek_device_stream *stream)
{
    (void)to_device, (void)from_device, (void)stream;
    if (bytes > 0)
        memmove(to, from, bytes);
    return TREK_OK;
}

static trek_status cpu_stream_new(trek_device device, trek_device_stream **stream)
{
    *stream = trek_alloc(sizeof **stream);
    if (!*stream)
        return TREK_ERR_MEMORY;
    (*stream)->device = device;
    return TREK_OK;
}

static void cpu_stream_free(trek_device_stream *stream) { trek_free(stream); }

static trek_status cpu_event_new(trek_device device, trek_event **event)
{
    (void)device;
    *event = trek_calloc(1, sizeof **event);
    return *event ? TREK_OK : TREK_ERR_MEMORY;
}

static void cpu_event_free(trek_event *event) { trek_free(event); }

static trek_status cpu_event_record(trek_event *event, trek_device_stream *stream)
{
    (void)stream;
    event->at_ns = trek_clock_ns();
    return TREK_OK;
}

static trek_status cpu_stream_wait(trek_device device, trek_device_stream *stream, trek_event *event)
{
    (void)device, (void)stream, (void)event;
    return TREK_OK;
}

static trek_status cpu_event_elapsed_ms(trek_event *start, trek_event *end, double *ms)
{
    if (start->at_ns == 0 || end->at_ns == 0)
        return trek_fail(TREK_ERR_STATE, "event: its time was asked for before it was recorded; record it first");
    *ms = (double)(end->at_ns - start->at_ns) * 1e-6;
    return TREK_OK;
}

static trek_status cpu_event_sync(trek_event *event)
{
    (void)event;
    return TREK_OK;
}

static trek_status cpu_nothing_pending(trek_device device)
{
    (void)device;
    return TREK_OK;
}

typedef struct instruction_set {
    const char *name;
    int isa; /* as in the table */
    void (*fill)(trek_backend *b);
    bool supported;
} instruction_set;

#if defined(__x86_64__)
/* clang's __builtin_cpu_supports does not know this feature: bit 29 of ECX of leaf 1. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
#endif

/* Lists them from the simplest to the best. Returns how many the library has. */
static int instruction_sets(instruction_set list[3])
{
    int n = 0;
    list[n++] = (instruction_set){ "baseline", 0, trek_cpu_kernels_baseline, true };
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
                __builtin_cpu_supports("bmi2");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if defined(TREK_WITH_AVX2)
    list[n++] = (instruction_set){ "avx2", 1, trek_cpu_kernels_avx2, avx2 };
#endif
#if defined(TREK_WITH_AVX512)
    list[n++] = (instruction_set){ "avx512", 2, trek_cpu_kernels_avx512, avx512 };
#endif
    (void)avx512, (void)avx2;
#endif
    return n;
}

static const instruction_set *choose(const instruction_set *list, int n)
{
    const instruction_set *best = &list[0];
    for (int k = 0; k < n; k++)
        if (list[k].supported)
            best = &list[k];
    const char *wanted = getenv("TREK_ISA");
    if (!wanted || !*wanted)
        return best;
    for (int k = 0; k < n; k++)
        if (strcmp(list[k].name, wanted) == 0 && list[k].supported)
            return &list[k];
    trek_log_message(TREK_LOG_LEVEL_WARNING, "TREK_ISA=%s: unknown, or not supported by this machine: using %s", wanted,
                     best->name);
    return best;
}

static trek_backend cpu_backend = {
    .abi = TREK_BACKEND_ABI,
    .name = "cpu",
    .type = TREK_CPU,
    .device_count = cpu_device_count,
    .usable = cpu_usable,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .record_use = cpu_record_use,
    .release_cached = trek_memory_release_cached,
    .reset_peak = trek_memory_reset_peak,
    .pinned_allocate = cpu_pinned_allocate,
    .pinned_release = trek_block_free,
    .pinned_release_after = cpu_pinned_release_after,
    .info = cpu_info,
    .describe = cpu_describe,
    .host_accessible = true,
    .stats = trek_memory_usage,
    .copy_bytes = cpu_copy_bytes,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_elapsed_ms = cpu_event_elapsed_ms,
    .event_sync = cpu_event_sync,
    .sync = cpu_nothing_pending,
    .deferred_error = cpu_nothing_pending,
};

static void fill_with(const instruction_set *set)
{
    set->fill(&cpu_backend);
    cpu_backend.isa = set->isa;
    trek_cpu_update_functions(&cpu_backend);
}

/* Those that the library has. In a virtual machine each question to the processor leaves it: it is asked once. */
static instruction_set sets[3];
static int n_sets;

static void fill_backend(void)
{
    n_sets = instruction_sets(sets);
    fill_with(choose(sets, n_sets));
}

bool trek_cpu_use(const char *isa)
{
    trek_cpu_backend();
    if (!isa) {
        fill_with(choose(sets, n_sets));
        return true;
    }
    for (int k = 0; k < n_sets; k++)
        if (strcmp(sets[k].name, isa) == 0 && sets[k].supported) {
            fill_with(&sets[k]);
            return true;
        }
    return false;
}

bool trek_cpu_has_tiles(bool *faster)
{
    *faster = false;
#if defined(__x86_64__) && defined(TREK_WITH_AVX512)
    if (trek_cpu_backend()->isa == 2 && trek_amx_hardware()) {
        *faster = trek_gemm_amx_faster_avx512(TREK_F32);
        return true;
    }
#endif
    return false;
}

trek_products_way trek_products_in_use(void)
{
    const trek_products_way way = trek_products_chosen(TREK_F32);
    bool faster;
    if (way != TREK_PRODUCTS_WAY_MEASURED)
        return way;
    return trek_cpu_has_tiles(&faster) && faster ? TREK_PRODUCTS_WAY_TILES : TREK_PRODUCTS_WAY_FMA;
}

bool trek_cpu_has_dots(void)
{
#if defined(__x86_64__) && defined(TREK_WITH_AVX512)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

const trek_backend *trek_cpu_backend(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_backend);
    return &cpu_backend;
}
