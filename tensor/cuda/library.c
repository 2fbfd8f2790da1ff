/* SPDX-License-Identifier: Apache-2.0 */
/* How libraries are opened at run time, and the file names of each. */
#include "tensor/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/late.h"

/* why NULL: no reason is wanted. */
static void *try_file(const char *path, char *why, size_t size)
{
    bool valid = trek_late_name_valid(path);
    void *library = valid ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    const char *problem = library ? NULL : valid ? dlerror() : TREK_LATE_RELATIVE;
    if (!library && why)
        snprintf(why, size, "%s", problem ? problem : path);
    return library;
}

void *trek_cuda_open_library(const char *variable, const char *const *names, char *why, size_t size)
{
    const char *given = secure_getenv(variable); /* the plug-in links nothing of trek */
    if (given && given[0])
        return try_file(given, why, size);
#ifndef TREK_FAKE_CUDA
    static const char *const folders[] = { "/usr/local/cuda/lib64/", "/usr/local/cuda/targets/x86_64-linux/lib/",
                                           "/opt/cuda/lib64/", "/usr/lib/x86_64-linux-gnu/" };
    void *library = NULL;
    for (int k = 0; names[k] && !library; k++)
        library = try_file(names[k], why, size);
    for (size_t f = 0; f < sizeof folders / sizeof folders[0] && !library; f++)
        for (int k = 0; names[k] && !library; k++) {
            char path[256];
            snprintf(path, sizeof path, "%s%s", folders[f], names[k]);
            library = try_file(path, NULL, 0);
        }
    return library;
#else
    snprintf(why, size, "%s does not name %s", variable, names[0]);
    return NULL;
#endif
}

bool trek_cuda_find_function(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

void trek_cuda_versions(char *text, size_t size)
{
    static void (*const of[])(char *, size_t) = { trek_cuda_blas_version, trek_cuda_dnn_version, trek_cuda_nccl_version };
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(text, size, "driver for CUDA %d.%d; runtime %d.%d", driver / 1000, driver / 10 % 100, runtime / 1000,
             runtime / 10 % 100);
    for (size_t k = 0; k < sizeof of / sizeof of[0]; k++) {
        char one[400];
        of[k](one, sizeof one);
        size_t used = strlen(text);
        snprintf(text + used, size - used, "; %s", one);
    }
}
