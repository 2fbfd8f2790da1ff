/* SPDX-License-Identifier: Apache-2.0 */
/* What the installed cuDNN says of our operation graphs, also on a machine without a GPU: it can be asked about devices that are
 * not there. It has to take each graph; where there is a driver, which its engines need to compile, it has to make a plan by
 * one whose bits are the same in each run. 77: there is no cuDNN, or one before 9.8. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/attention/dnn_graphs.h"
#include "tensor/cuda/conv/dnn_graphs.h"

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

/* --- convolutions --------------------------------------------------------------------------------- */

/* x and weight, then stride, padding, dilation of both dimensions: layers of a ResNet, and odd ones */
static const int64_t convolutions[][11] = {
    { 32, 64, 56, 56, 64, 64, 3, 3, 1, 1, 1 },   { 32, 256, 56, 56, 64, 256, 1, 1, 1, 0, 1 },
    { 32, 128, 56, 56, 128, 128, 3, 3, 2, 1, 1 },
    { 32, 3, 224, 224, 64, 3, 7, 7, 2, 3, 1 },   { 32, 64, 56, 56, 64, 1, 3, 3, 1, 1, 1 },
    { 32, 128, 28, 28, 128, 4, 3, 3, 1, 1, 1 },
    { 3, 17, 13, 11, 23, 17, 3, 2, 1, 1, 2 },
};

/* way: bits 0..1: f32 as it is, by TF32, bf16, f16; bit 2: row-major; the rest: forward alone, with bias, ReLU, both, the
 * gradients of x and weight. */
static void fill_conv(trek_dnn_conv_key *key, const int64_t *s, int way)
{
    static const int32_t dtypes[4] = { TREK_F32, TREK_F32, TREK_BF16, TREK_F16 };
    int what = way >> 3;
    memset(key, 0, sizeof *key);
    memcpy(key->x, s, sizeof key->x);
    memcpy(key->weight, s + 4, sizeof key->weight);
    key->y[0] = s[0], key->y[1] = s[4];
    for (int d = 0; d < 2; d++) {
        key->y[2 + d] = (s[2 + d] + 2 * s[9] - s[10] * (s[6 + d] - 1) - 1) / s[8] + 1;
        for (int k = 0; k < 3; k++)
            key->numbers[2 * k + d] = s[8 + k];
    }
    key->dtype = dtypes[way & 3], key->exact = (way & 3) == 0, key->last = !(way >> 2 & 1);
    key->bias = what == 1 || what == 3, key->relu = what == 2 || what == 3;
    key->pass = what == 4 ? TREK_DNN_OF_INPUT : what == 5 ? TREK_DNN_OF_WEIGHT : TREK_DNN_FORWARD;
}

/* It has to take the descriptors, and where there is a driver make a plan; ReLU alone behind a convolution it may leave to us. */
static bool takes_conv(const device *d, cudnnBackendDescriptor_t description, const int64_t *shape, int way, bool driver)
{
    static const char *const names[] = { "forward", "with bias", "with ReLU", "with bias and ReLU", "gradient of x",
                                         "gradient of weight" };
    static const char *const formats[] = { "f32", "TF32", "bf16", "f16" };
    static trek_dnn_graph graph;
    trek_dnn_conv_key key;
    fill_conv(&key, shape, way);
    trek_dnn_conv_compose(&graph, &key);
    bool composed = !graph.failed;
    bool planned = trek_dnn_graph_plan(&graph, NULL, description, (size_t)512 << 20);
    printf("%s: %s %s, %s, x %lldx%lldx%lldx%lld, weight %lldx%lldx%lldx%lld: %s%s\n", d->name, names[way >> 3], formats[way & 3],
           key.last ? "channels last" : "row-major", (long long)shape[0], (long long)shape[1], (long long)shape[2],
           (long long)shape[3], (long long)shape[4], (long long)shape[5], (long long)shape[6], (long long)shape[7],
           composed ? "taken" : "REFUSED", planned ? ", planned" : graph.failed ? ", no engines" : driver ? ", NO PLAN"
                                                                                                              : ", no plan");
    trek_dnn_graph_free(&graph);
    return composed && (planned || !driver || (key.relu && !key.bias));
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
        for (size_t s = 0; s < sizeof convolutions / sizeof convolutions[0]; s++)
            for (int way = 0; way < 6 << 3; way++)
                failed += !takes_conv(&devices[d], description, convolutions[s], way, driver);
        library.BackendDestroyDescriptor(description);
    }
    return failed > 0;
}
