/* SPDX-License-Identifier: Apache-2.0 */
/* What the installed cuDNN says of our operation graphs, also on a machine without a GPU: it can be asked about devices that are
 * not there. It has to take each graph; where there is a driver, which its engines need to compile, it has to make a plan by
 * one whose bits are the same in each run. 77: there is no cuDNN, or one before 9.8. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/attention/dnn_graphs.h"

static trek_dnn_library library;
const trek_dnn_library *trek_dnn(void) { return &library; }

/* Why there is none; NULL. */
static const char *open_library(void)
{
    const char *given = getenv("TREK_CUDNN_LIBRARY");
    void *handle = dlopen(given && given[0] ? given : "libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return "no libcudnn.so.9 here";
#define FIND(name)                                                                     \
    void *at_##name = dlsym(handle, "cudnn" #name);                                    \
    if (!at_##name)                                                                    \
        return "a library without cudnn" #name;                                        \
    memcpy(&library.name, &at_##name, sizeof at_##name);
    TREK_DNN_FUNCTIONS(FIND)
#undef FIND
    return library.GetVersion() < 90800 ? "a cuDNN before 9.8" : NULL;
}

typedef struct device {
    const char *name;
    int capability, multiprocessors, shared;
} device;

static const device devices[] = { { "A100", 800, 108, 166912 }, { "H100", 900, 132, 232448 }, { "B200", 1000, 148, 232448 } };

/* The members that the library asks for by name where one is missing; NULL: it does not take them. */
static cudnnBackendDescriptor_t describe(const device *d)
{
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "{\"deviceVer\":%d,\"driverVer\":13000,\"cudaDeviceId\":0,\"totalGlobalMem\":85000000000,"
                     "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
                     "\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
                     "\"maxSharedMemoryPerBlockOptin\":%d,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
                     "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,"
                     "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,"
                     "\"l2CacheSize\":52428800,\"deviceName\":\"%s\"}",
                     d->capability, d->multiprocessors, d->shared, d->name);
    cudnnBackendDescriptor_t made = NULL;
    bool fine = trek_dnn_fine(library.BackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &made)) &&
                trek_dnn_fine(library.BackendSetAttribute(made, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n,
                                                          text)) &&
                trek_dnn_fine(library.BackendFinalize(made));
    return fine ? made : NULL;
}

/* batch, heads, groups of heads, queries, keys, depth */
static const int64_t shapes[][6] = { { 2, 8, 8, 512, 512, 64 }, { 2, 8, 2, 256, 256, 128 }, { 1, 3, 1, 100, 77, 40 } };

/* Heads inside of rows, as in a packed projection. */
static void fill(trek_dnn_attention_key *key, const int64_t *s, int way)
{
    memset(key, 0, sizeof *key);
    key->batch = s[0], key->heads = s[1], key->kv_heads = s[2], key->queries = s[3], key->keys = s[4], key->depth = s[5];
    key->dtype = way & 1 ? TREK_F16 : TREK_BF16;
    key->causal = way >> 1 & 1;
    key->backward = way >> 2;
    const int64_t q[4] = { s[1] * s[3] * s[5], s[5], s[1] * s[5], 1 }, k[4] = { s[2] * s[4] * s[5], s[5], s[2] * s[5], 1 };
    int64_t *const of_queries[4] = { key->q, key->y, key->dy, key->dq }, *const of_keys[4] = { key->k, key->v, key->dk, key->dv };
    for (int i = 0; i < 4; i++) {
        memcpy(of_queries[i], q, sizeof q);
        memcpy(of_keys[i], k, sizeof k);
    }
}

static bool takes(const device *d, cudnnBackendDescriptor_t description, const int64_t *shape, int way, bool driver)
{
    static trek_dnn_graph graph;
    trek_dnn_attention_key key;
    fill(&key, shape, way);
    trek_dnn_attention_compose(&graph, &key);
    bool planned = trek_dnn_graph_plan(&graph, NULL, description, (size_t)1 << 40), taken = !graph.failed;
    printf("%s: %s%s %s, %lld x %lld x %lld queries, %lld keys, depth %lld: %s%s\n", d->name,
           key.causal ? "causal " : "", key.backward ? "backward" : "forward", key.dtype == TREK_F16 ? "f16" : "bf16",
           (long long)shape[0], (long long)shape[1], (long long)shape[3], (long long)shape[4], (long long)shape[5],
           taken ? "taken" : "REFUSED", planned ? ", planned" : driver ? ", NO PLAN" : "");
    trek_dnn_graph_free(&graph);
    return taken && (planned || !driver);
}

int main(void)
{
    const char *why = open_library();
    bool driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != NULL;
    int failed = 0;
    if (why) {
        printf("skipped: %s\n", why);
        return 77;
    }
    for (size_t d = 0; d < sizeof devices / sizeof devices[0]; d++) {
        cudnnBackendDescriptor_t description = describe(&devices[d]);
        if (!description) {
            printf("skipped: cuDNN %zu does not take the description of a device\n", library.GetVersion());
            return 77;
        }
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (int way = 0; way < 8; way += 1 + (s > 0)) /* f16 for the first shape alone */
                failed += !takes(&devices[d], description, shapes[s], way, driver);
        library.BackendDestroyDescriptor(description);
    }
    return failed > 0;
}
